"""A target, a home and a shared Spark for children that die: what they did, as a test sees it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.story import OWN
from conformance.story import plain as plain_value
from crash.child import Child, Events, Order, Outcome
from ematix_flow.backends.loading import load_backend
from ematix_flow.connections import Connection
from ematix_flow.errors import Unsupported
from ematix_flow.model import Column, Table
from ematix_flow.run.log import open_run_log
from ematix_flow.run.records import RunRecord, effective_status, utc_now
from harness.base import Harness, all_harnesses
from oracle.state import Row

Found = list[tuple[Any, ...]]


@dataclass(frozen=True)
class World:
    """One backend and everything that runs against it leave behind."""

    backend: Harness
    home: Path
    scratch: Path
    remote: str = field(repr=False)
    place: str = "target"

    @property
    def target(self) -> Connection:
        """Where the runs write, as the harness knows it."""
        return self.backend.connection(self.place)

    def order(self, **details: Any) -> Order:
        """An order to a child."""
        target = dataclasses.replace(self.target, name="target")
        plain = Order((target,), self.home, self.scratch, self.remote)
        return dataclasses.replace(plain, **details)

    def run(self, **details: Any) -> Outcome:
        """A run in a process of its own that must succeed."""
        outcome = Child(self.order(**details)).outcome()
        assert outcome.error is None, outcome.text
        return outcome

    def run_all(self, orders: Sequence[Order]) -> list[Outcome]:
        """Runs in one process that all must succeed."""
        outcomes = Child(*orders).outcomes()
        for outcome in outcomes:
            assert outcome.error is None, outcome.text
        return outcomes

    def kill(self, point: str, **details: Any) -> int:
        """A run that kills its own process at a point; the process's id."""
        child = Child(self.order(die_at=point, **details))
        assert child.exit_code() == -signal.SIGKILL
        return child.pid

    def rows(self) -> Found:
        """All rows, as any program finds them."""
        return plain(self.backend.rows(self.target, Events.__table__))

    def stored(self, table: Table) -> list[Row]:
        """All rows of a table with the columns that this system adds."""
        return _values(self.backend.rows(self.target, _with_own(table)))

    def standing(self) -> Found | None:
        """The rows of the newest commit, or None while there is no table."""
        found = self.standing_rows(Events.__table__)
        return None if found is None else plain(found)

    def standing_rows(self, table: Table) -> list[Row] | None:
        """The rows of a table's newest commit, or None while there is no table.

        Where a manifest says which files count, a plain listing may show a commit in progress;
        so only the files that it names are read.
        """
        name = table.name
        places = [p for p in self.backend.folder.rglob(name.name) if p.is_dir()]
        if not places or (places[0] / "_delta_log").is_dir():
            return self.stored(table) if self.backend.exists(self.target, name) else None
        manifests = sorted(places[0].glob("_ematix/*.json"))
        if not manifests:
            return None
        copy = self.scratch / "standing"
        folder = copy / str(name.schema) / name.name
        folder.mkdir(parents=True)
        for file in json.loads(manifests[-1].read_text(encoding="utf-8"))["files"]:
            shutil.copy(places[0] / file["name"], folder)
        seen = dataclasses.replace(self.target, path=str(copy))
        found = _values(self.backend.rows(seen, _with_own(table)))
        shutil.rmtree(copy)
        return found

    def watermark(self, table: Table, pipeline: str, column: str) -> str | None:
        """How far a pipeline says that it has loaded a table."""
        try:
            return load_backend(self.target).watermarks(pipeline, table.name).get(column)
        except Unsupported:
            return None

    def litter(self) -> list[str]:
        """What no run may leave behind: stages, spools, folders of dead engines."""
        return [*self.backend.litter(self.target), *(str(p) for p in self.scratch.rglob("*"))]

    def records(self) -> list[RunRecord]:
        """The run log, oldest run first."""
        log = open_run_log(str(self.home / "run_log.db"))
        try:
            return log.list(limit=1000)[::-1]
        finally:
            log.close()

    def record(self, pid: int) -> RunRecord:
        """What the run log says of the run of a process."""
        (found,) = (r for r in self.records() if r.pid == pid)
        return found

    def shown(self, pid: int) -> str:
        """The status that a user is shown now."""
        return effective_status(self.record(pid), utc_now())


def _with_own(table: Table) -> Table:
    declared = set(table.column_names)
    added = tuple(Column(kind, name=name) for name, kind in OWN.items() if name not in declared)
    return dataclasses.replace(table, columns=(*table.columns, *added))


def _values(rows: Sequence[Row]) -> list[Row]:
    return [{name: plain_value(value) for name, value in row.items()} for row in rows]


def first_of_their_kind() -> set[str]:
    """One harness per kind of backend: those of one kind share the code that commits."""
    return set({cls.kind: cls.name for cls in reversed(all_harnesses())}.values())


def plain(rows: Sequence[dict[str, Any]]) -> Found:
    """Rows without what differs from run to run, in a fixed order."""
    return sorted(((r["event_id"], r["name"]) for r in rows), key=repr)


def after(before: Found | None, mode: str, rows: Sequence[tuple[Any, ...]]) -> Found:
    """The oracle: what a table holds after a run."""
    kept = [] if before is None or mode == "truncate" else before
    return sorted([*kept, *rows], key=repr)
