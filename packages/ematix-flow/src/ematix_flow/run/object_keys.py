"""The keys under which a run log keeps its objects; a key tells all that a search needs.

Keys are listed in their order, so times are written the wrong way round: the newest come first.

    runs/<time>/<pipeline>/<run>/<target>/<step>/<state>              the records; all below
    pipelines/<pipeline>/<time>/<file>/<run>/<target>/<step>/<state>  is empty: of a pipeline
    ids/<run>/<time>/<pipeline>/<target>/<step>                       to find a run by its id
    open/<pipeline>/<time>/<run>/<target>/<step>                      whose end is not known

Beside these are ``turns/<origin>/<pipeline>`` and ``known/<origin>/<pipeline>``: ``object_turns``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from urllib.parse import quote, unquote

from ematix_flow.run.records import RunRecord

SUCCEEDED, ENDED, LOST, RUNNING = "succeeded", "ended", "lost", "running"
STATES = (SUCCEEDED, ENDED, LOST, RUNNING)
"""What may be known of a record, each in an object of its own; the first that is there counts."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_LAST = 10**18
_LONG = 100
_ODD = ("", ".", "..")


@dataclass(frozen=True)
class Entry:
    """A record, by the parts of its keys."""

    time: str
    pipeline: str
    run: str
    target: str
    step: str

    @classmethod
    def of(cls, record: RunRecord) -> Entry:
        """The entry of a record."""
        return cls(
            inverted(record.started_at),
            part(record.pipeline),
            quote(record.run_id, safe=""),
            part(record.target),
            part(record.step),
        )

    @classmethod
    def from_run_key(cls, key: str) -> tuple[Entry, str]:
        """The entry and the state that a key below ``runs/`` tells of."""
        _, time, pipeline, run, target, step, state = key.split("/")
        return cls(time, pipeline, run, target, step), state

    @classmethod
    def from_pipeline_key(cls, key: str) -> tuple[Entry, str, str]:
        """The entry, the state and the file that a key below ``pipelines/`` tells of."""
        _, pipeline, time, file, run, target, step, state = key.split("/")
        return cls(time, pipeline, run, target, step), state, file

    @classmethod
    def from_id_key(cls, key: str) -> Entry:
        """The entry that a key below ``ids/`` tells of."""
        _, run, time, pipeline, target, step = key.split("/")
        return cls(time, pipeline, run, target, step)

    @classmethod
    def from_open_key(cls, key: str) -> Entry:
        """The entry that a key below ``open/`` tells of."""
        _, pipeline, time, run, target, step = key.split("/")
        return cls(time, pipeline, run, target, step)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return unquote(self.run)

    @property
    def folder(self) -> str:
        """What the keys of the record begin with."""
        return f"runs/{self.time}/{self.pipeline}/{self.run}/{self.target}/{self.step}/"

    def run_key(self, state: str) -> str:
        """Where the record itself is, in one state."""
        return f"{self.folder}{state}"

    def pipeline_key(self, state: str, file: str) -> str:
        """How a pipeline's records are found."""
        ours = f"{self.run}/{self.target}/{self.step}/{state}"
        return f"pipelines/{self.pipeline}/{self.time}/{file}/{ours}"

    @property
    def id_key(self) -> str:
        """How a record is found by the id of its run."""
        return f"ids/{self.run}/{self.time}/{self.pipeline}/{self.target}/{self.step}"

    @property
    def open_key(self) -> str:
        """How a record is found whose end is not known."""
        return f"open/{self.pipeline}/{self.time}/{self.run}/{self.target}/{self.step}"


def state_of(record: RunRecord) -> str:
    """The state that a record tells of: an end that is not a success is said once."""
    return record.status if record.status in STATES else ENDED


def inverted(moment: datetime) -> str:
    """A time, as text that is smaller the later it is."""
    return f"{_LAST - (moment - _EPOCH) // _MICROSECOND:019d}"


def part(text: str) -> str:
    """A name as one part of a key, short enough that a key never becomes too long."""
    quoted = quote(text, safe="")
    if quoted in _ODD:
        return f"={quoted}"
    if len(quoted) > _LONG:
        return f"{quoted[:_LONG]}={digest(text)}"
    return quoted


def digest(text: str) -> str:
    """Sixteen letters that tell a text from others."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
