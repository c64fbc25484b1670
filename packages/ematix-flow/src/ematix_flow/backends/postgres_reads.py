"""How PostgreSQL is read through Spark: in parts of one table on one snapshot, or in one stream.

The server's own planner decides by which value a table is parted: by the key or index, or by the
place of a row (``ctid``), for which all parts together cost the least. Bounds come from a sample
of the rows that the query gives, so that no part has much more of them than another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.splits import OneTable, conditions, fetch_rows, one_table, parts_wanted
from ematix_flow.errors import EmatixError
from ematix_flow.sql.identifiers import bare, quoted

if TYPE_CHECKING:
    from ematix_flow.backends.postgres import Postgres
    from ematix_flow.backends.sql_session import Session

PART = "ematix_part"
_SOURCE = "source_query"
_PLACE = "ctid"
# Whose text means the same, and sorts the same, in every session that we open.
_ORDERED = frozenset(
    {
        *("smallint", "integer", "bigint", "numeric", "real", "double precision", "date"),
        *("timestamp without time zone", "timestamp with time zone", "uuid"),
        *("text", "character varying"),
    }
)
_MOST_CANDIDATES = 6
_SAMPLED_PAGES = 512
_MOST_SAMPLED_PAGES = 4096
_LEAST_SAMPLE = 20
# What all parts may cost beside one stream, as the planner counts: an index makes a scan dearer,
# but the server's share of the work is the smaller one.
_DEARER = 2.5
# A key is taken before a place that is cheaper by less than this.
_KEY_BONUS = 2.0
_EXPLAINED = 4


class _OneStream(Exception):
    """Why a query is not read in parts."""


@dataclass(frozen=True)
class Parts:
    """How a query is read: ``rows`` is what to select from, without ``conditions`` by one task.

    Each part's connection does what is ``before``, as long as the ``snapshot`` is kept.
    """

    rows: str
    how: str
    conditions: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    fetch: int = fetch_rows(0)
    snapshot: Snapshot | None = None

    @property
    def extra(self) -> tuple[str, ...]:
        """What the conditions look at, beside the columns of the query."""
        return (quoted(PART, "postgres"),) if self.conditions else ()


@dataclass(frozen=True)
class _Candidate:
    value: str
    declared: str
    nullable: bool
    name: str
    bounds: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """The parts, over a query that gives the value as ``PART``."""
        return conditions(quoted(PART, "postgres"), self.bounds, nullable=self.nullable)


@dataclass(frozen=True)
class _Facts:
    oid: int
    name: str
    pages: int
    tuples: float
    width: float
    stored: str
    candidates: tuple[_Candidate, ...]
    connections: int


class Snapshot:
    """A transaction that others can join to see the same rows, for as long as it is kept."""

    def __init__(self, backend: Postgres) -> None:
        with backend.translated():
            self._raw = backend.connect(read_only=True)
        try:
            with backend.translated():
                # Nobody may end it for idling: it does nothing else.
                self._raw.execute(
                    "SELECT set_config(name, '0', false) FROM pg_settings "
                    "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
                )
                self._raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                found = self._raw.execute("SELECT pg_export_snapshot(), pg_backend_pid()")
                self.name, pid = found.fetchone()
        except BaseException:
            self.close()
            raise
        self.pooled = pid != self._raw.info.backend_pid

    def close(self) -> None:
        """Let the server forget it."""
        with contextlib.suppress(Exception):
            self._raw.close()


def in_one(backend: Postgres, query: SourceQuery, why: str, *, fetch: int = Parts.fetch) -> Parts:
    """The whole query by one task."""
    return Parts(backend.subquery(query), f"in one stream: {why}", fetch=fetch)


def in_parts(backend: Postgres, session: Session, query: SourceQuery, slots: int) -> Parts:
    """The query in as many parts as it is worth; the caller closes the snapshot they are of."""
    table = one_table(bare(query.sql, "postgres"), "postgres")
    rows, width, _ = estimated(session, f"SELECT * FROM {backend.subquery(query)}")
    if table is None:
        why = "its query is more than a SELECT from one table"
        return in_one(backend, query, why, fetch=fetch_rows(width))
    width = max(width, _stored_width(session, table))
    fetch = fetch_rows(width)
    if slots == 1:
        return in_one(backend, query, "Spark runs one task at a time", fetch=fetch)
    if parts_wanted(rows=rows, width=width, slots=slots, connections=slots) == 1:
        return in_one(backend, query, "there is little to read", fetch=fetch)
    try:
        return _Planning(backend, session, query, table, slots).parts()
    except _OneStream as reason:
        return in_one(backend, query, str(reason), fetch=fetch)


def _stored_width(session: Session, table: OneTable) -> float:
    """The bytes of a row on the server's disk: what is stored apart the planner leaves out."""
    try:
        found = session.one(
            "SELECT pg_table_size(oid) / reltuples FROM pg_class WHERE oid = to_regclass(%s) "
            "AND reltuples > 0",
            (table.table,),
        )
    except EmatixError:
        return 0.0
    return float(found or 0.0)


def estimated(session: Session, sql: str) -> tuple[float, float, float]:
    """How many rows the planner expects, how wide they are, and what they cost."""
    (plan,) = session.one(f"EXPLAIN (FORMAT JSON) {sql}")
    top = plan["Plan"]
    return float(top["Plan Rows"]), float(top["Plan Width"]), float(top["Total Cost"])


class _Planning:
    def __init__(
        self, backend: Postgres, session: Session, query: SourceQuery, table: OneTable, slots: int
    ) -> None:
        self.backend, self.session, self.query = backend, session, query
        self.table, self.slots = table, slots

    def parts(self) -> Parts:
        """Find the facts, take a sample, let the planner compare."""
        try:
            # What is kept where is asked first: whoever writes the table anew after that is seen.
            facts = self._facts()
            snapshot = Snapshot(self.backend)
        except EmatixError as error:
            raise _OneStream(f"the server says: {error.what}") from error
        try:
            return self._on(snapshot, facts)
        except BaseException:
            snapshot.close()
            raise

    def _on(self, snapshot: Snapshot, facts: _Facts) -> Parts:
        if snapshot.pooled:
            raise _OneStream("a connection pool stands before the server")
        before = _before(facts, snapshot)
        with self._imported(before):
            whole = f"SELECT * FROM {self.backend.subquery(self.query)}"
            rows, width, cost = estimated(self.session, whole)
            width = max(width, facts.width)
            wanted = parts_wanted(
                rows=rows, width=width, slots=self.slots, connections=facts.connections
            )
            if wanted == 1:
                raise _OneStream("the server has hardly a connection to spare")
            chosen = self._cheapest(self._fit(facts, wanted, selected=rows), cost)
        made = chosen.conditions()
        return Parts(
            rows=self._source(chosen),
            how=f"in {len(made)} splits by {chosen.name}, on one snapshot",
            conditions=made,
            before=before,
            fetch=fetch_rows(width),
            snapshot=snapshot,
        )

    @contextlib.contextmanager
    def _imported(self, before: Sequence[str]) -> Iterator[None]:
        """What a part does first is done once here, where it may fail without harm."""
        session = self.session
        session.run("BEGIN")
        try:
            for statement in before:
                session.run(statement)
            # What is fetched piece by piece has no parallel workers.
            session.run("SET LOCAL max_parallel_workers_per_gather = 0")
            session.run("SET LOCAL datestyle = 'ISO, MDY'")
            yield
        except EmatixError as error:
            raise _OneStream(f"the server says: {error.what}") from error
        finally:
            session.run("ROLLBACK")

    def _facts(self) -> _Facts:
        found = self.session.rows(
            "SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relhassubclass, "
            "c.relam = (SELECT oid FROM pg_am WHERE amname = 'heap') "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass(%s)",
            (self.table.table,),
        )
        if not found:
            raise _OneStream("its table is not found by its name alone")
        oid, schema, relation, kind, has_children, heap = found[0]
        if kind not in ("r", "m", "p"):
            kinds = {"v": "a view", "f": "a foreign table"}
            raise _OneStream(f"it reads {kinds.get(kind, 'something else than a table')}")
        if has_children and kind == "r":
            raise _OneStream("other tables inherit from its table")
        members = self.session.rows(
            "SELECT t.relid::oid::bigint, c.relkind::text, pg_table_size(t.relid), "
            "pg_relation_size(t.relid) / current_setting('block_size')::int, c.reltuples::float8 "
            f"FROM {_members(oid)} AS t(relid) JOIN pg_class c ON c.oid = t.relid"
        )
        if any(member[1] == "f" for member in members):
            raise _OneStream("a part of its table is on another server")
        tuples = sum(max(0.0, member[4]) for member in members)
        size = sum(int(member[2]) for member in members)
        candidates = self._candidates(oid)
        if heap or kind == "p":
            candidates.append(_Candidate(_PLACE, "tid", False, "row position"))
        return _Facts(
            oid=oid,
            name=f"{quoted(schema, 'postgres')}.{quoted(relation, 'postgres')}",
            pages=max(1, sum(int(member[3]) for member in members)),
            tuples=tuples,
            width=size / tuples if tuples else 0.0,
            stored=str(self.session.one(f"SELECT {_stored(oid)}")),
            candidates=tuple(candidates),
            connections=spare_connections(self.session),
        )

    def _candidates(self, oid: int) -> list[_Candidate]:
        """The first columns of the table's indexes: of the primary key, of unique ones, of others.

        An index over a part of the rows says nothing about the rest.
        """
        found = self.session.rows(
            "SELECT a.attname, format_type(a.atttypid, NULL), NOT a.attnotnull FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam "
            "WHERE i.indrelid = %s AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree' "
            "AND NOT a.attisdropped ORDER BY i.indisprimary DESC, i.indisunique DESC, x.relname",
            (oid,),
        )
        known = {
            name: _Candidate(quoted(name, "postgres"), declared, nullable, name)
            for name, declared, nullable in reversed(found)
            if declared in _ORDERED
        }
        return list(reversed(known.values()))[:_MOST_CANDIDATES]

    def _fit(self, facts: _Facts, wanted: int, *, selected: float) -> list[_Candidate]:
        """The candidates with bounds, in the order of preference."""
        given = {f"{PART}_{i}": c.value for i, c in enumerate(facts.candidates)}
        # Where a condition leaves few rows, more pages are needed to see as many of them.
        scarce = max(1.0, facts.tuples / max(selected, 1.0))
        pages = min(_MOST_SAMPLED_PAGES, _SAMPLED_PAGES * scarce)
        percent = min(100.0, 100.0 * pages / facts.pages)
        with_values = self.table.with_columns(given)
        sampled = (
            OneTable(with_values, self.table.table, "postgres").sampled(
                f"TABLESAMPLE SYSTEM ({percent:.6f})"
            )
            if with_values
            else None
        )
        if sampled is None:
            raise _OneStream("its query cannot be cut")
        shares = ", ".join(f"{i / wanted:.6f}" for i in range(1, wanted))
        items = ", ".join(
            f"count({name}), (percentile_disc(ARRAY[{shares}]::float8[]) "
            f"WITHIN GROUP (ORDER BY {name}))::text[]"
            for name in given
        )
        told = self.session.rows(f"SELECT count(*), {items} FROM (\n{sampled}\n) AS {_SOURCE}")[0]
        total, answers = int(told[0]), list(zip(told[1::2], told[2::2], strict=True))
        if total < _LEAST_SAMPLE:
            raise _OneStream("a sample has too few of its rows")
        fit: list[_Candidate] = []
        poor: list[_Candidate] = []
        for candidate, (there, texts) in zip(facts.candidates, answers, strict=True):
            distinct = tuple(dict.fromkeys(texts or ()))
            bounds = tuple(f"{_literal(text)}::{candidate.declared}" for text in distinct)
            if not bounds or (total - there) * wanted > total:
                continue
            made = replace(candidate, bounds=bounds)
            (fit if len(bounds) == wanted - 1 else poor).append(made)
        # By a value that many rows share, the parts would be of very different sizes.
        chosen = fit or sorted(poor, key=lambda c: -len(c.bounds))[:1]
        if not chosen:
            raise _OneStream("no column tells its rows apart")
        return chosen

    def _source(self, candidate: _Candidate) -> str:
        made = self.table.with_columns({PART: candidate.value})
        if made is None:
            raise _OneStream("its query cannot be cut")
        return f"(\n{made}\n) AS {quoted(_SOURCE, 'postgres')}"

    def _cheapest(self, fit: Sequence[_Candidate], one_stream: float) -> _Candidate:
        """By what the planner thinks that all parts cost; a key is preferred to a place."""
        costs = {}
        for candidate in fit:
            made = candidate.conditions()
            step = max(1, len(made) // _EXPLAINED)
            asked = made[::step]
            source = self._source(candidate)
            told = [
                estimated(self.session, f"SELECT * FROM {source} WHERE {condition}")[2]
                for condition in asked
            ]
            costs[candidate] = sum(told) * len(made) / len(asked)
        worth = {c: cost for c, cost in costs.items() if cost <= one_stream * _DEARER}
        if not worth:
            raise _OneStream("each part would cost about as much as the whole")
        return min(worth, key=lambda c: worth[c] * (_KEY_BONUS if c.declared == "tid" else 1.0))


def spare_connections(session: Session) -> int:
    """Half of the connections that this user could still open."""
    free = session.one(
        "SELECT least("
        "current_setting('max_connections')::int "
        "- current_setting('superuser_reserved_connections')::int "
        "- (SELECT count(*) FROM pg_stat_activity), "
        "(SELECT CASE WHEN d.datconnlimit < 0 THEN 1000000 ELSE d.datconnlimit - "
        "(SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid) END "
        "FROM pg_database d WHERE d.datname = current_database()), "
        "(SELECT CASE WHEN r.rolconnlimit < 0 THEN 1000000 ELSE r.rolconnlimit - "
        "(SELECT count(*) FROM pg_stat_activity a WHERE a.usename = r.rolname) END "
        "FROM pg_roles r WHERE r.rolname = session_user))"
    )
    return max(0, int(free or 0)) // 2


def _before(facts: _Facts, snapshot: Snapshot) -> tuple[str, ...]:
    """What each part's connection does before it reads.

    A table that was truncated or written anew has other rows, or the same ones elsewhere, for
    whoever comes late, whatever the snapshot: so each part looks, once nobody can do it.
    """
    said = f"table {facts.name} was truncated or rewritten while it was read"
    check = (
        f"DO $ematix$ BEGIN IF ({_stored(facts.oid)}) IS DISTINCT FROM '{facts.stored}' THEN "
        f"RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = {_literal(said)}; "
        "END IF; END $ematix$"
    )
    return (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        f"SET TRANSACTION SNAPSHOT '{snapshot.name}'",
        f"LOCK TABLE {facts.name} IN ACCESS SHARE MODE",
        check,
    )


def _members(oid: int) -> str:
    """The table itself, or all parts of a partitioned one."""
    return (
        f"(SELECT {oid}::oid UNION SELECT p.relid::oid FROM pg_partition_tree({oid}::oid::regclass)"
        " p)"
    )


def _stored(oid: int) -> str:
    """An expression for where the rows are kept; it changes when they are written anew."""
    return (
        "(SELECT string_agg(concat(t.relid, ':', pg_relation_filenode(t.relid)), ',' "
        f"ORDER BY t.relid) FROM {_members(oid)} AS t(relid))"
    )


def _literal(text: str) -> str:
    """A text constant, whatever the server's setting for backslashes."""
    plain = text.replace("'", "''")
    return f"E'{plain.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{plain}'"
