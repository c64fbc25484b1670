"""The turns of pipelines in a bucket: one document each, changed by compare-and-set."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from ematix_flow.errors import ConfigError
from ematix_flow.run.buckets import Bucket
from ematix_flow.run.object_keys import digest, part
from ematix_flow.run.turns import Key, Turn

_FIELDS = frozenset(f.name for f in dataclasses.fields(Turn))
_TIMES = ("slot", "retry_at", "expires_at")


class BucketTurns:
    """The turns in one bucket, and which pipelines it knows of."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._noted: set[Key] = set()

    def note(self, key: Key) -> None:
        """Have it known that there is such a pipeline."""
        if key not in self._noted:
            name = json.dumps({"pipeline": key.pipeline}).encode()
            self._bucket.put(f"known/{_place(key)}", name)
            self._noted.add(key)

    def known(self, origin: str) -> set[Key]:
        """The pipelines of an origin that have run or have a turn."""
        found = set()
        for kind in ("known", "turns"):
            for name in self._bucket.list(f"{kind}/{digest(origin)}/"):
                found.add(Key(origin, self._pipeline(name)))
        return found

    def _pipeline(self, name: str) -> str:
        quoted, mark, more = name.rpartition("/")[2].partition("=")
        if not mark:
            return unquote(quoted)
        if not quoted:
            return more
        # Too long for a key, so that the document tells it.
        return str(json.loads(self._bucket.get(name) or b"{}").get("pipeline", ""))

    def get(self, key: Key) -> Turn:
        """The turn of a pipeline, an empty one if it has none."""
        data = self._bucket.get(_turn(key))
        return Turn() if data is None else self._read(key, data)

    def enter(self, key: Key, turn: Turn) -> None:
        """Write a first turn down, unless there is one."""
        first = dataclasses.replace(turn, epoch=1)
        self._bucket.put(_turn(key), _document(key, first), if_absent=True)

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Change a turn; False if somebody else has changed it since it was read."""
        held = self._bucket.get_tagged(_turn(key))
        if (Turn() if held is None else self._read(key, held[0])).epoch != before.epoch:
            return False
        moved = dataclasses.replace(after, epoch=before.epoch + 1)
        document = _document(key, moved)
        condition: dict[str, Any] = {"if_match": held[1]} if held else {"if_absent": True}
        if self._bucket.put(_turn(key), document, **condition) is not None:
            return True
        # The answer to a change of ours may have been lost: by its token we know it again.
        return moved.token is not None and self._bucket.get(_turn(key)) == document

    def _read(self, key: Key, data: bytes) -> Turn:
        try:
            fields = {n: v for n, v in json.loads(data)["turn"].items() if n in _FIELDS}
            for name in _TIMES:
                if fields.get(name) is not None:
                    fields[name] = datetime.fromisoformat(fields[name])
            return Turn(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{self._bucket.url}/{_turn(key)} is not the turn of a pipeline",
                fix="move it away: nothing else was meant to be written there",
            ) from error


def _document(key: Key, turn: Turn) -> bytes:
    fields = dataclasses.asdict(turn)
    for name in _TIMES:
        if fields[name] is not None:
            fields[name] = fields[name].astimezone(timezone.utc).isoformat()
    return json.dumps({"version": 1, "pipeline": key.pipeline, "turn": fields}).encode()


def _turn(key: Key) -> str:
    return f"turns/{_place(key)}"


def _place(key: Key) -> str:
    return f"{digest(key.origin)}/{part(key.pipeline)}"
