"""The run log in a SQL database: what every product has in common.

``runs`` has a row for each run, target and step; ``pipelines`` has one for each pipeline, with its
last run and its turn. A turn is changed by compare-and-set, in one statement, so that of all who
mean to change it one does. Times are UTC text, so that text order is time order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol

from ematix_flow.errors import RunLogUnavailable
from ematix_flow.run.log import (
    Records,
    check_filter,
    decisive,
    only_one_run,
    warn_of_lost_records,
)
from ematix_flow.run.records import RunRecord, effective_status, utc_now
from ematix_flow.run.turns import Key, Last, Standing, Turn

COLUMNS = tuple(f.name for f in dataclasses.fields(RunRecord))
TURN_COLUMNS = tuple(f.name for f in dataclasses.fields(Turn))
LAST_COLUMNS = tuple(f"last_{f.name}" for f in dataclasses.fields(Last))
_TIMES = ("started_at", "finished_at", "heartbeat_at", "slot", "retry_at", "expires_at")
_DOCUMENTS = ("parameters", "metrics")
# A word that MySQL keeps for itself.
_SPELLED = {"trigger": '"trigger"'}
_SET = ", ".join(f"{_SPELLED.get(c, c)} = :{c}" for c in COLUMNS)
_ALL = ", ".join(_SPELLED.get(c, c) for c in COLUMNS)
_ONE_RUN = "run_id = :run_id AND target = :target AND step = :step"
_ONE_PIPELINE = "origin = :origin AND pipeline = :pipeline"
_NAMED = re.compile(r":(\w+)")
# How many are asked for by name in one statement.
_AT_ONCE = 200


class LogDown(RunLogUnavailable):
    """The run log does not answer."""


class Statements(Protocol):
    """A connection to the log, for the length of a block."""

    def run(self, sql: str, values: Mapping[str, Any]) -> int:
        """Run a statement; how many rows it has changed."""

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """All rows of a query."""


class SqlRunLog(ABC):
    """The run log in a SQL database."""

    runs = "runs"
    pipelines = "pipelines"
    unless_there = "ON CONFLICT DO NOTHING"
    place = ""
    remedy = "see that it answers, or name another with --run-log"

    def __init__(self) -> None:
        self._complained = False

    @abstractmethod
    def connected(self) -> contextlib.AbstractContextManager[Statements]:
        """The log, for one question or change; ``LogDown`` where it does not answer."""

    @abstractmethod
    def clock(self) -> datetime:
        """The time, by a clock that all who share the log go by."""

    @abstractmethod
    def close(self) -> None:
        """Give back files and connections."""

    def begin(self, record: RunRecord) -> None:
        """Record a run that has started."""
        row = row_of(record)
        with self._warned(), self.connected() as log:
            if not self._inserted(log, row):
                log.run(f"UPDATE {self.runs} SET {_SET} WHERE {_ONE_RUN}", row)
            self._note(log, record, newest="last_started_at <= :last_started_at")

    def heartbeat(self, run_id: str) -> None:
        """Say that a run is still alive."""
        with self._warned(), self.connected() as log:
            log.run(
                f"UPDATE {self.runs} SET heartbeat_at = :now "
                "WHERE run_id = :run_id AND status = 'running'",
                {"now": text_of(utc_now()), "run_id": run_id},
            )

    def finish(self, record: RunRecord) -> None:
        """Record how a run ended."""
        row = row_of(record)
        with self._warned(), self.connected() as log:
            if not self._inserted(log, row):
                log.run(
                    f"UPDATE {self.runs} SET {_SET} WHERE {_ONE_RUN} "
                    "AND (status IN ('running', 'lost') OR :status = 'succeeded')",
                    row,
                )
            mine = [r for r in self._of_run(log, record.run_id) if r.run_id == record.run_id]
            ended = decisive(mine[::-1]) or record
            self._note(log, ended, newest="last_run_id = :last_run_id")

    def _inserted(self, log: Statements, row: Mapping[str, Any]) -> bool:
        """Whether it was not known yet; ``seq`` keeps the order of those that start at once."""
        names = (*COLUMNS, "seq")
        statement = self._insertion(self.runs, names)
        return log.run(statement, {**row, "seq": time.time_ns()}) == 1

    def _insertion(self, table: str, names: Sequence[str]) -> str:
        """An INSERT that changes nothing where the key is there already."""
        marks = ", ".join(f":{name}" for name in names)
        columns = ", ".join(_SPELLED.get(name, name) for name in names)
        return f"INSERT INTO {table} ({columns}) VALUES ({marks}) {self.unless_there}"

    def _note(self, log: Statements, record: RunRecord, *, newest: str) -> None:
        """Tell the pipeline's own row of its last run."""
        last = {
            "origin": record.declared_in,
            "pipeline": record.pipeline,
            "last_run_id": record.run_id,
            "last_status": record.status,
            "last_started_at": text_of(record.started_at),
            "last_finished_at": text_of(record.finished_at),
            "last_rows": record.rows_written,
            "last_error": record.error_class,
        }
        changes = ", ".join(f"{c} = :{c}" for c in LAST_COLUMNS)
        known = f"(last_run_id IS NULL OR {newest})"
        log.run(f"UPDATE {self.pipelines} SET {changes} WHERE {_ONE_PIPELINE} AND {known}", last)
        blank = {**_turn_row(Turn()), **last}
        log.run(self._insertion(self.pipelines, tuple(blank)), blank)

    def list(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
    ) -> Records:
        """The latest records, newest first."""
        check_filter(status, limit)
        asked = {"pipeline": pipeline, "status": status, "limit": limit}
        conditions = ["pipeline = :pipeline"] if pipeline is not None else []
        if status not in ("running", "lost"):
            conditions += ["status = :status"] if status is not None else []
            return self._select(conditions, asked, limited=True)
        # Whether a run is alive cannot be asked of the log, so these are sorted out here.
        conditions.append("status IN ('running', 'lost')")
        now = utc_now()
        found = self._select(conditions, asked)
        return [r for r in found if effective_status(r, now) == status][:limit]

    def get(self, run_id: str) -> Records:
        """The records of one run."""
        with self._readable() as log:
            found = self._of_run(log, run_id)
        return only_one_run(run_id, found)

    def _of_run(self, log: Statements, run_id: str) -> Records:
        """In the order in which they began."""
        rows = log.rows(
            f"SELECT {_ALL} FROM {self.runs} "
            "WHERE run_id >= :run_id AND run_id < :end ORDER BY started_at, seq",
            {"run_id": run_id, "end": run_id + "\uffff"},
        )
        return [record_of(row) for row in rows]

    def running(self, pipeline: str) -> Records:
        """The records of a pipeline whose end is not known."""
        unknown = "status IN ('running', 'lost')"
        return self._select([unknown, "pipeline = :name"], {"name": pipeline})

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """The record that tells how the last run of this file's pipeline ended."""
        conditions = ["pipeline = :name", "declared_in = :file"]
        asked = {"name": pipeline, "file": declared_in, "limit": 1}
        found = self._select(conditions, asked, limited=True)
        if not found:
            return None
        asked["run_id"] = found[0].run_id
        return decisive(self._select([*conditions, "run_id = :run_id"], asked))

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Remove the records of what began before; the ids of the runs."""
        latest = (
            "SELECT run_id FROM (SELECT run_id, row_number() OVER (PARTITION BY pipeline, "
            f"declared_in ORDER BY started_at DESC, seq DESC) AS place FROM {self.runs}) AS ranked "
            "WHERE place = 1"
        )
        old = "started_at < :before AND status NOT IN ('running', 'lost')"
        asked = {"before": text_of(before)}
        with self._readable() as log:
            found = log.rows(
                f"SELECT DISTINCT run_id FROM {self.runs} WHERE {old} AND run_id NOT IN ({latest})",
                asked,
            )
            gone = [str(run_id) for (run_id,) in found]
            for start in () if dry_run else range(0, len(gone), _AT_ONCE):
                some = {f"r{n}": r for n, r in enumerate(gone[start : start + _AT_ONCE])}
                marks = ", ".join(f":{name}" for name in some)
                log.run(
                    f"DELETE FROM {self.runs} WHERE {old} AND run_id IN ({marks})", asked | some
                )
        return frozenset(gone)

    def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
        """How the pipelines of these origins stand."""
        asked = sorted(set(origins))
        found: dict[Key, Standing] = {}
        names = ", ".join(("origin", "pipeline", *LAST_COLUMNS, *TURN_COLUMNS))
        with self._readable() as log:
            for start in range(0, len(asked), _AT_ONCE):
                some = {f"o{n}": o for n, o in enumerate(asked[start : start + _AT_ONCE])}
                marks = ", ".join(f":{name}" for name in some)
                rows = log.rows(
                    f"SELECT {names} FROM {self.pipelines} WHERE origin IN ({marks})", some
                )
                found |= {Key(row[0], row[1]): _standing_of(row[2:]) for row in rows}
        return found

    def enter(self, turns: Mapping[Key, Turn]) -> None:
        """Write first turns down; those of pipelines that have one already stay."""
        names = (*Key._fields, *TURN_COLUMNS)
        changes = ", ".join(f"{c} = :{c}" for c in TURN_COLUMNS)
        with self._readable() as log:
            for key, turn in turns.items():
                row = {**_turn_row(turn), **key._asdict(), "epoch": 1}
                if log.run(self._insertion(self.pipelines, names), row) == 0:
                    log.run(
                        f"UPDATE {self.pipelines} SET {changes} "
                        f"WHERE {_ONE_PIPELINE} AND epoch = 0",
                        row,
                    )

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Change a turn; False if somebody else has changed it since it was read."""
        row = {**_turn_row(after), **key._asdict(), "seen": before.epoch}
        row["epoch"] = before.epoch + 1
        names = (*Key._fields, *TURN_COLUMNS)
        changes = ", ".join(f"{c} = :{c}" for c in TURN_COLUMNS)
        with self._readable() as log:
            changed = log.run(
                f"UPDATE {self.pipelines} SET {changes} WHERE {_ONE_PIPELINE} AND epoch = :seen",
                row,
            )
            if changed or before.epoch:
                return changed == 1
            first = {name: row[name] for name in names}
            return log.run(self._insertion(self.pipelines, names), first) == 1

    def _select(
        self, conditions: Sequence[str], asked: dict[str, Any], *, limited: bool = False
    ) -> Records:
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        limit = " LIMIT :limit" if limited else ""
        statement = (
            f"SELECT {_ALL} FROM {self.runs} {where}ORDER BY started_at DESC, seq DESC{limit}"
        )
        with self._readable() as log:
            return [record_of(row) for row in log.rows(statement, asked)]

    @contextlib.contextmanager
    def _readable(self) -> Iterator[Statements]:
        try:
            with self.connected() as log:
                yield log
        except LogDown as error:
            raise RunLogUnavailable(
                f"the run log {self.place} cannot be read: {error.what}",
                fix=self.remedy,
            ) from error

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """A log that cannot be written must not fail a run that did its work."""
        try:
            yield
        except LogDown as error:
            if not self._complained:
                self._complained = True
                warn_of_lost_records(f"the run log {self.place} cannot be written ({error.what})")


def positional(sql: str, values: Mapping[str, Any], mark: str) -> tuple[str, list[Any]]:
    """A statement and its values, for a driver that knows no names."""
    order = _NAMED.findall(sql)
    return _NAMED.sub(mark, sql), [values[name] for name in order]


def row_of(record: RunRecord) -> dict[str, Any]:
    """A record as the values of its columns."""
    row = {name: getattr(record, name) for name in COLUMNS}
    for name in _DOCUMENTS:
        row[name] = json.dumps(row[name], default=str, sort_keys=True)
    return _timed(row)


def record_of(row: Sequence[Any]) -> RunRecord:
    """A record from the values of its columns."""
    values = _untimed(dict(zip(COLUMNS, row, strict=True)))
    for name in _DOCUMENTS:
        values[name] = json.loads(values[name])
    return RunRecord(**values)


def _turn_row(turn: Turn) -> dict[str, Any]:
    return _timed(
        {name: getattr(turn, name) for name in TURN_COLUMNS} | {"paused": int(turn.paused)}
    )


def _standing_of(row: Sequence[Any]) -> Standing:
    fields = (f.removeprefix("last_") for f in LAST_COLUMNS)
    last = _untimed(dict(zip(fields, row[: len(LAST_COLUMNS)], strict=True)))
    turn = _untimed(dict(zip(TURN_COLUMNS, row[len(LAST_COLUMNS) :], strict=True)))
    turn["paused"] = bool(turn["paused"])
    return Standing(Last(**last) if last["run_id"] is not None else None, Turn(**turn))


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: text_of(v) if name in _TIMES else v for name, v in row.items()}


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    for name in _TIMES:
        if row.get(name) is not None:
            row[name] = datetime.fromisoformat(row[name])
    return row


def text_of(moment: datetime | None) -> str | None:
    """UTC with microseconds always written, so that text order is time order."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")
