"""The commit shared by all SQL databases: change sets, steps and bookkeeping in one transaction."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import Landing, Load, Staged
from ematix_flow.backends.bookkeeping import Bookkeeping
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.backends.sql_alterations import about_stored_rows, check_alterations
from ematix_flow.change import CURRENT, INCOMING, OPERATION, SIDE, Assertion, Counts, Revise
from ematix_flow.errors import (
    BackendError,
    BadValue,
    EmatixError,
    Fenced,
    RunError,
    Transient,
)
from ematix_flow.sql.identifiers import column_list, quoted
from ematix_flow.watermark import greater_value

if TYPE_CHECKING:
    from sqlglot import exp

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueryStage:
    """Incoming rows that are a query of the target's own database."""

    select: str


class SqlLanding(Landing):
    """The commit shared by all SQL databases; a product adds its stage."""

    def __init__(self, backend: SqlBackend, load: Load) -> None:
        self.backend = backend
        self.load = load
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> SqlLanding:
        with contextlib.ExitStack() as stack:
            self.session = stack.enter_context(self.backend.session())
            self.books = Bookkeeping(self.session)
            self.sweep()
            self.epoch = self.books.epoch(self.load.run.pipeline, str(self.load.name))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.remove_stage()
        except EmatixError as error:
            # The run has ended, well or not; this must not hide how. The next one sweeps.
            logger.warning("the stage of run %s is still there: %s", self.load.run.run_id, error)
        finally:
            self._stack.close()

    @abstractmethod
    def sweep(self) -> None:
        """Remove what runs that died before their commit have left."""

    @abstractmethod
    def remove_stage(self) -> None:
        """Remove this run's stage."""

    @abstractmethod
    def define_incoming(self, staged: Staged) -> None:
        """Make ``incoming`` a relation of this session, inside the transaction."""

    def define_relation(self, staged: Staged) -> None:
        """Make ``incoming`` from whatever was staged."""
        if isinstance(staged.handle, QueryStage):
            self.query_incoming(staged.handle.select)
        else:
            self.define_incoming(staged)

    def stage_query(self, select: str) -> Staged:
        """The incoming rows are a query of this database; nothing moves before the commit."""
        return Staged(rows=-1, bytes=0, handle=QueryStage(select))

    def query_incoming(self, select: str) -> None:
        """``incoming`` from a query of this database; a view where it is read only once."""
        dialect = self.backend.dialect
        rows = f"({select}) AS {quoted('assigned', dialect)}"
        values = [quoted(name, dialect) for name in self.load.incoming_names]
        query = self.backend.incoming_select(self.load, rows, values)
        if self.load.change.revisions or self.load.watermark:
            self.session.run(f"CREATE TEMPORARY TABLE {quoted(INCOMING, dialect)} AS {query}")
        else:
            self.define_view(query)

    def define_view(self, select: str) -> None:
        """``incoming`` as a view that lives as long as this session."""
        name = quoted(INCOMING, self.backend.dialect)
        self.session.run(f"CREATE TEMPORARY VIEW {name} AS {select}")

    def commit(self, staged: Staged, *, keep: bool) -> Counts:
        """Everything in one transaction."""
        self.load.announce("committing")
        try:
            with self.backend.commit_lock(self.session, creates=self.load.creates or not keep):
                counts = self._committed(staged, keep=keep)
        except Transient as error:
            # A session that has asked for a commit in vain says so.
            error.uncommitted = not error.unanswered
            raise
        if keep:
            self.load.announce("committed")
        return counts

    def _committed(self, staged: Staged, *, keep: bool) -> Counts:
        try:
            if keep:
                self.books.ensure()
            return self._apply(staged, keep=keep)
        except (BackendError, BadValue) as error:
            self._explain_race(error)
            self._explain_keys(staged, error)
            if isinstance(error, BadValue) and not error.from_source:
                error.what = f"table {self.load.name}: {error.what}"
            raise

    def _apply(self, staged: Staged, *, keep: bool) -> Counts:
        load, session = self.load, self.session
        with session.transaction(keep=keep):
            if not keep:
                self.books.create_missing()
            if load.batch is not None and self.books.applied([load.batch], str(load.name)):
                return Counts()
            self.arrive(staged)
            self._take_fence()
            self.prepare_tables()
            self.define_relation(staged)
            counts = self.change(staged)
            self._add_keys()
            self._move_watermark()
            self.books.record_run(load.run, str(load.name), counts)
            if load.batch is not None:
                self.books.record_batch(load.batch, str(load.name), load.run.run_id)
        return counts

    def arrive(self, staged: Staged) -> None:
        """Let rows arrive that were not staged, before others have to wait for this commit."""

    def prepare_tables(self) -> None:
        """Create the table and what is kept beside it, where they are missing; alter the rest."""
        load = self.load
        with about_stored_rows(self.backend, load):
            if load.alterations:
                check_alterations(self.backend, self.session, load)
                statements = self.backend.alter_in(self.session, load)
            elif self._keys_last:
                statements = self.backend.create_table(load.table.without_keys(), load.columns)
            else:
                statements = self.backend.ddl(load)
            if load.side is not None:
                columns = load.columns_of(SIDE)
                statements += self.backend.create_table(load.side, columns, unless_there=True)
            for statement in statements:
                self.session.run(statement)

    @property
    def _keys_last(self) -> bool:
        return self.load.creates and self.backend.keys_last

    def _add_keys(self) -> None:
        clauses = self.backend.key_clauses(self.load.table)
        if self._keys_last and clauses:
            added = ", ".join(f"ADD {clause}" for clause in clauses)
            self.session.run(f"ALTER TABLE {self.backend.locate(self.load.name)} {added}")

    def change(self, staged: Staged) -> Counts:
        """Compute all change sets, apply every step, and say what was done."""
        load, change, session = self.load, self.load.change, self.session
        done: dict[str, int] = {}
        self.check("incoming")
        for name, query in change.derived.items():
            self.derive(name, query)
        # Of a table that this commit creates, the change set holds nothing but inserts.
        direct = load.creates and load.inspect is None
        first = [s for s in change.revisions if direct and s.relation == CURRENT]
        expected = {s.changes: self._compute(s) for s in change.revisions if s not in first}
        if not first:
            self.check("changes")
        if load.inspect is not None:
            load.inspect(load, self._ask)
        for step in change.steps:
            if isinstance(step, Revise) and step in first:
                done["inserted"] = session.run(self._first_rows(step))
            elif isinstance(step, Revise):
                for counted, rows in self._revise(step, expected[step.changes]).items():
                    done[counted] = done.get(counted, 0) + rows
            else:
                for count, sql in self.backend.statements(step, load):
                    done[count] = done.get(count, 0) + session.run(sql)
            load.announce(f"applied {step.verb}")
        if not first:
            self.check("result")
        return self._counted(staged, done)

    def derive(self, name: str, query: exp.Query) -> None:
        """Keep a relation that several steps read."""
        self.session.run(
            f"CREATE TEMPORARY TABLE {name} AS {self.backend.render(query, self.load)}"
        )

    def _first_rows(self, step: Revise) -> str:
        columns = column_list(self.load.column_names, self.backend.dialect)
        rows = self.backend.render(self.load.change.opening or step.rows, self.load)
        return (
            f"INSERT INTO {self.backend.locate(self.load.name)} ({columns}) "
            f"SELECT {columns} FROM ({rows}) AS first_rows"
        )

    def _compute(self, step: Revise) -> dict[str, int]:
        """Materialise a change set; how many rows each of its operations has."""
        backend, load = self.backend, self.load
        columns = ", ".join(
            f"{quoted(name, backend.dialect)} {backend.stored_type(kind)}"
            for name, kind in load.columns_of(step.relation)
        )
        self.session.run(
            f"CREATE TEMPORARY TABLE {step.changes} ({OPERATION} VARCHAR(16), {columns})"
        )
        self.session.run(f"INSERT INTO {step.changes} {backend.render(step.rows, load)}")
        self.changes_known(step)
        found = self.session.rows(
            f"SELECT {OPERATION}, COUNT(*) FROM {step.changes} GROUP BY {OPERATION}"
        )
        return {str(operation): int(rows) for operation, rows in found}

    def changes_known(self, step: Revise) -> None:
        """What a product does once a change set is complete, before it is applied."""

    def _revise(self, step: Revise, expected: Mapping[str, int]) -> dict[str, int]:
        for act, sql in self.backend.statements(step, self.load):
            wanted = sum(expected.get(name, 0) for name in step.operations(act))
            touched = self.session.run(sql) if wanted else 0
            if touched != wanted:
                raise RunError(
                    f"{self.load.name}: {wanted} rows were to {act} and {touched} were found; "
                    "nothing was written",
                    fix="check that the key is unique in the table, then run it again",
                )
        counted: dict[str, int] = {}
        for name, effect in step.effects.items():
            if effect.counted:
                counted[effect.counted] = counted.get(effect.counted, 0) + expected.get(name, 0)
        return counted

    def _counted(self, staged: Staged, done: dict[str, int]) -> Counts:
        read = staged.rows
        if read < 0 and self.load.change.revisions:
            read = int(self.session.one(f"SELECT COUNT(*) FROM {self._incoming}"))
        if read < 0:
            read = done.get("inserted", 0)
        if self.load.change.considered is not None:
            considered = self.session.one(
                self.backend.render(self.load.change.considered, self.load)
            )
            done["unchanged"] = int(considered) - done.get("inserted", 0) - done.get("updated", 0)
        return Counts(read=read, **done)

    @property
    def _incoming(self) -> str:
        return self.backend.relation(INCOMING, self.load).sql(dialect=self.backend.dialect)

    def _move_watermark(self) -> None:
        move = self.load.watermark
        if move is None:
            return
        found = self.backend.greatest(self.session, self.load, move)
        reached = greater_value(move.previous, found, move.kind)
        if reached is not None:
            self.books.move_watermark(
                self.load.run.pipeline, str(self.load.name), move.column, reached
            )

    def _take_fence(self) -> None:
        if not self.books.advance(self.load.run, str(self.load.name), self.epoch):
            raise self._fenced()

    def _fenced(self) -> Fenced:
        run, name = self.load.run, self.load.name
        given_up = False
        with contextlib.suppress(EmatixError):
            given_up = self.books.is_given_up(run, str(name))
        happened = (
            f"this run of pipeline {run.pipeline!r} was given up for dead before it could commit "
            f"to {name}; it changed nothing"
            if given_up
            else f"another run of pipeline {run.pipeline!r} committed to {name} after this one had "
            "started; this run changed nothing"
        )
        return Fenced(happened, fix="run it again if its rows are still needed")

    def _explain_race(self, error: EmatixError) -> None:
        """Every product reports a lost race in its own words; what is there now tells which."""
        load = self.load
        try:
            if self.books.find_run(load.run.run_id, str(load.name)) is not None:
                return
            fenced = self.books.epoch(load.run.pipeline, str(load.name)) != self.epoch
            created = load.creates and self.backend.inspect_in(self.session, load.name) is not None
        except EmatixError:
            return
        if fenced:
            raise self._fenced() from error
        if created:
            raise Transient(
                f"table {load.name} was created by somebody else while this run was under way",
                connection=self.backend.name,
                fix="run it again",
            ) from error

    def _explain_keys(self, staged: Staged, error: EmatixError) -> None:
        """A key of a new table may have refused what an assertion tells better."""
        if not isinstance(error, BadValue) or not self._left_to_keys():
            return
        with self.session.transaction(keep=False):
            self.define_relation(staged)
            for assertion in self._left_to_keys():
                self._require(assertion)

    def _left_to_keys(self) -> list[Assertion]:
        """The assertions that the keys of a table that is being created make superfluous."""
        load, table = self.load, self.load.table
        if not self._keys_last or load.inspect:
            return []
        keys = [set(group) for group in (table.primary_key, *table.unique_groups)]
        return [a for a in load.change.assertions if a.unique and set(a.unique) in keys]

    def _ask(self, query: exp.Query) -> list[tuple[Any, ...]]:
        return self.session.rows(self.backend.render(query, self.load))

    def check(self, when: str) -> None:
        """Ask what must hold at this point."""
        left = self._left_to_keys()
        for assertion in self.load.change.assertions:
            if assertion.when == when and assertion not in left:
                self._require(assertion)

    def _require(self, assertion: Assertion) -> None:
        found = self._ask(assertion.violations)
        if found:
            raise assertion.refuse(found)
