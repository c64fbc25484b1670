"""How MySQL and MariaDB are read through Spark: in one stream, or in parts that begin together.

Connections to these servers cannot share a snapshot. So the parts of a table, each a task with a
connection of its own, wait until all of them are there. Then nobody writes the table for the
moment in which they begin their transactions. That moment does not come again, so what the parts
read is spooled.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import heapq
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.mysql_session import sql_mode
from ematix_flow.backends.mysql_types import in_form, on_the_wire
from ematix_flow.backends.splits import OneTable, conditions, one_table, parts_wanted
from ematix_flow.backends.spool import spool_folder
from ematix_flow.engine.session import configured, slots
from ematix_flow.errors import Cancelled, EmatixError, Unsupported
from ematix_flow.sql.identifiers import bare, quoted, split_name
from ematix_flow.sql.spark import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.backends.mysql import MySQL
    from ematix_flow.backends.sql_session import Session
    from ematix_flow.engine.session import Engine

logger = logging.getLogger(__name__)

PART = "ematix_part"
# To Connector/J the least integer means: row by row as they come, kept neither here nor there.
_STREAMED = str(-(1 << 31))
# With fewer tasks at once, to spool costs more than the other streams gain (measured with two).
_LEAST_SLOTS = 4
_ORDERED = ("tinyint", "smallint", "mediumint", "int", "bigint", "date", "datetime", "timestamp")
# How many pieces are known of every part, and how often a planner is asked for them at most.
_FINE = 4
_QUESTIONS = 300
# The largest part that is still worth while, in shares.
_UNEVEN = 1.5
_GATHER_SECONDS = 10.0
_LOCK_SECONDS = 3
_BEGIN_SECONDS = 5.0
_POLL_SECONDS = 0.005

Bound: TypeAlias = "int | dt.date | dt.datetime"


class _OneStream(Exception):
    """Why a query is not read in parts."""


@dataclass(frozen=True)
class Parts:
    """How a query is read: ``rows`` is what to select from, without ``conditions`` by one task.

    All parts are of one ``table``.
    """

    rows: str
    how: str
    conditions: tuple[str, ...] = ()
    table: str = ""


def in_one(backend: MySQL, query: SourceQuery, why: str) -> Parts:
    """The whole query by one task, and one statement, which sees one state of the database."""
    return Parts(backend.subquery(query), f"in one stream: {why}")


def in_parts(
    backend: MySQL, session: Session, query: SourceQuery, slots: int, *, spread: bool
) -> Parts:
    """The query in as many parts as it is worth; ``spread`` if its tasks run on other machines."""
    try:
        table = one_table(bare(query.sql, "mysql"), "mysql")
        if table is None:
            raise _OneStream("its query is more than a SELECT from one table")
        if spread:
            raise _OneStream("the machines of a cluster cannot begin it together")
        if slots < _LEAST_SLOTS:
            raise _OneStream(f"Spark runs fewer than {_LEAST_SLOTS} tasks at a time")
        return _Planning(backend, session, query, table, slots).parts()
    except _OneStream as reason:
        return in_one(backend, query, str(reason))


class _Planning:
    def __init__(
        self, backend: MySQL, session: Session, query: SourceQuery, table: OneTable, slots: int
    ) -> None:
        self.backend, self.session, self.query = backend, session, query
        self.table, self.slots = table, slots
        self.questions = _QUESTIONS
        name = split_name(table.table, "mysql")
        self.place = (backend.schema_of(name), name.name)
        self.named = ".".join(quoted(part, "mysql") for part in self.place)

    def parts(self) -> Parts:
        """By the first index that cuts the table into parts of about one size."""
        try:
            width = self._width()
            self._check_rights()
            total = self._expected(f"SELECT * FROM {self.named}")
            selected = self._expected(f"SELECT * FROM {self.backend.subquery(self.query)}")
            wanted = parts_wanted(
                rows=selected,
                width=width,
                slots=self.slots,
                connections=spare_connections(self.session),
            )
            if wanted == 1:
                raise _OneStream("there is little to read, or no connection to spare")
            if selected < total / 2:
                raise _OneStream("its condition leaves the smaller part of a table")
            for column, index, nullable in self._candidates():
                bounds = self._bounds(column, index, wanted - nullable)
                if bounds:
                    return self._cut(column, bounds, nullable=nullable, whole=selected)
        except EmatixError as error:
            raise _OneStream(f"the server says: {error.what}") from error
        raise _OneStream("no index of numbers or times cuts its table evenly")

    def _cut(self, column: str, bounds: list[Bound], *, nullable: bool, whole: float) -> Parts:
        made = self.table.with_columns({PART: quoted(column, "mysql")})
        if made is None:
            raise _OneStream("its query cannot be cut")
        rows = f"(\n{made}\n) AS source_query"
        told = [_literal(bound) for bound in bounds]
        cuts = conditions(quoted(PART, "mysql"), told, nullable=nullable)
        if self._expected(f"SELECT * FROM {rows} WHERE {cuts[0]}") > whole * 0.9:
            raise _OneStream("each part would cost about as much as the whole")
        how = f"in {len(cuts)} splits by {column}, begun together while the table is locked"
        return Parts(rows, how, cuts, self.named)

    def _width(self) -> float:
        # MySQL keeps what it tells here for a day, unless it is asked like this.
        found = self.session.rows(
            "SELECT /*+ SET_VAR(information_schema_stats_expiry = 0) */ engine, table_type, "
            "avg_row_length FROM information_schema.tables WHERE table_schema = %s "
            "AND table_name = %s",
            self.place,
        )
        if not found:
            raise _OneStream("its table is not found by its name alone")
        engine, kind, width = found[0]
        if kind != "BASE TABLE" or engine != "InnoDB":
            raise _OneStream(f"it reads {engine or 'a view'}, where nothing keeps a moment")
        return float(width or 0.0)

    def _check_rights(self) -> None:
        """Whether this user may lock the table, as far as its own grants say."""
        schema = self.place[0].lower()
        for (grant,) in self.session.rows("SHOW GRANTS"):
            told = re.match(r"GRANT (.+) ON (\S+)\.\* TO ", str(grant))
            if told is None:
                continue
            rights, where = told.group(1).upper(), told.group(2).strip("`").replace("\\", "")
            locks = "ALL PRIVILEGES" in rights or "LOCK TABLES" in rights
            if locks and where.lower() in ("*", schema):
                return
        raise _OneStream("this user may not lock tables")

    def _expected(self, sql: str) -> float:
        """How many rows the planner thinks it has to read."""
        with self.backend.translated():
            asked = f"EXPLAIN FORMAT=TRADITIONAL {sql}"
            names, found = self.backend.fetch(self.session.raw, asked, None)
        place = [name.lower() for name in names].index("rows")
        return float(max((row[place] or 0 for row in found), default=0))

    def _candidates(self) -> list[tuple[str, str, bool]]:
        """The first columns of the indexes: of the primary key, of unique ones, of others."""
        listed = ", ".join(f"'{kind}'" for kind in _ORDERED)
        found = self.session.rows(
            "SELECT s.column_name, s.index_name, c.is_nullable = 'YES' "
            "FROM information_schema.statistics s JOIN information_schema.columns c "
            "ON c.table_schema = s.table_schema AND c.table_name = s.table_name "
            "AND c.column_name = s.column_name WHERE s.table_schema = %s AND s.table_name = %s "
            f"AND s.seq_in_index = 1 AND s.index_type = 'BTREE' AND c.data_type IN ({listed}) "
            "ORDER BY s.index_name <> 'PRIMARY', s.non_unique, s.index_name",
            self.place,
        )
        return [(column, index, bool(nullable)) for column, index, nullable in found]

    def _bounds(self, column: str, index: str, wanted: int) -> list[Bound]:
        """What cuts the table into as many parts of about one size; nothing where it does not."""
        if wanted == 1:
            return []
        name = quoted(column, "mysql")
        ((least, most),) = self.session.rows(f"SELECT MIN({name}), MAX({name}) FROM {self.named}")
        # A day that no calendar has arrives as text.
        if not isinstance(least, int | dt.date) or not isinstance(most, int | dt.date):
            return []
        asked = f"SELECT {name} FROM {self.named} USE INDEX ({quoted(index, 'mysql')}) WHERE"

        def expected(low: Bound, high: Bound) -> float:
            self.questions -= 1
            if self.questions < 0:
                raise _OneStream("its keys are too uneven to be cut soon")
            upper = f"{name} {'<=' if high == most else '<'} {_literal(high)}"
            return self._expected(f"{asked} {name} >= {_literal(low)} AND {upper}")

        return _even_bounds(_pieces(expected, least, most, wanted), wanted)


def _pieces(
    expected: Callable[[Any, Any], float], least: Any, most: Any, wanted: int
) -> list[tuple[Any, float]]:
    """Where each piece of the values begins and how many rows it has, as far as a planner knows.

    It knows little of a range that holds much of the table, so the largest is halved again and
    again until all are small.
    """
    open_pieces = [(-expected(least, most), 0, least, most)]
    done: list[tuple[Any, float]] = []
    for number in itertools.count(1):
        rows, _, low, high = heapq.heappop(open_pieces)
        middle = low + (high - low) // 2
        if middle <= low:
            done.append((low, -rows))
        else:
            for place, (a, b) in enumerate(((low, middle), (middle, high))):
                heapq.heappush(open_pieces, (-expected(a, b), 2 * number + place, a, b))
        total = sum(rows for _, rows in done) - sum(piece[0] for piece in open_pieces)
        if not open_pieces or -open_pieces[0][0] * wanted * _FINE <= total:
            break
    return sorted(done + [(low, -rows) for rows, _, low, _ in open_pieces])


def _even_bounds(pieces: Sequence[tuple[Any, float]], wanted: int) -> list[Any]:
    """Where to cut, so that the parts have about as many rows; nowhere if they would not."""
    whole = sum(rows for _, rows in pieces)
    bounds: list[Any] = []
    sizes = [0.0]
    for low, rows in pieces:
        if len(bounds) < wanted - 1 and sum(sizes) + rows / 2 > whole * len(sizes) / wanted:
            bounds.append(low)
            sizes.append(0.0)
        sizes[-1] += rows
    fair = len(sizes) == wanted and max(sizes) * wanted <= whole * _UNEVEN
    return bounds if fair and pieces[0][0] not in bounds else []


def _literal(bound: Bound) -> str:
    if isinstance(bound, dt.datetime):
        return f"TIMESTAMP '{bound.isoformat(' ', 'microseconds')}'"
    return f"DATE '{bound.isoformat()}'" if isinstance(bound, dt.date) else str(bound)


class Gate:
    """Where the parts of a table wait for each other, by named locks of the server.

    A part says that it is there and waits at its own door. When all are there, the table is
    locked and the doors open. Each part begins, takes hold of the table, makes sure that it came
    in by its door while the table was locked, says so, and waits to go on until all have. Whoever
    comes later, a task that is tried again, fails.
    """

    def __init__(self, backend: MySQL, table: str, parts: int) -> None:
        self._backend, self._table = backend, table
        self._token = f"ematix_flow.{uuid4().hex[:20]}"
        self._parts = range(parts)
        self._ended = threading.Event()
        self.missed: str | None = "the parts did not all begin"

    def _name(self, what: str, part: int | None = None) -> str:
        return f"{self._token}.{what}{'' if part is None else part}"

    def _ask(self, sql: str, *given: Any) -> Any:
        with self._backend.translated():
            found = self._backend.rows(self._raw, sql, given)
        return found[0][0] if found else None

    def before(self, part: int) -> tuple[str, ...]:
        """What the connection of a part does before it reads."""
        seconds, door = int(_GATHER_SECONDS * 2), self._name("door", part)
        late = "(SELECT 1 UNION SELECT 2)"
        return (
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            f"SELECT GET_LOCK('{self._name('there', part)}', 0)",
            f"SELECT GET_LOCK('{door}', {seconds})",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
            # From here on nobody truncates or alters it.
            f"SELECT 1 FROM {self._table} LIMIT 0",
            # An error is the only answer that stops a task: a subquery with one row too many.
            f"SELECT IF(IS_USED_LOCK('{self._name('locked')}') IS NULL "
            f"OR NOT (IS_USED_LOCK('{door}') <=> CONNECTION_ID()), {late}, "
            f"GET_LOCK('{self._name('begun', part)}', 0))",
            f"SELECT GET_LOCK('{self._name('go', part)}', {seconds})",
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Let the parts begin as soon as they are there, while the block starts and runs them."""
        with self._backend.translated():
            self._raw = self._backend.connect()
        try:
            self._ask("SELECT GET_LOCK(%s, 0)", self._name("locked"))
            for what in ("door", "go"):
                for part in self._parts:
                    self._ask("SELECT GET_LOCK(%s, 0)", self._name(what, part))
            watcher = threading.Thread(target=self._conduct, name="ematix-gate", daemon=True)
            watcher.start()
            try:
                yield
            finally:
                self._ended.set()
                watcher.join()
        finally:
            self._close()

    def _close(self) -> None:
        # The server gives back all locks of a connection that ends.
        with contextlib.suppress(Exception):
            self._raw.close()

    def _conduct(self) -> None:
        try:
            self._gather("there", _GATHER_SECONDS, "its tasks did not all get a place in time")
            self._ask(f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
            self._ask(f"LOCK TABLES {self._table} READ")
            for part in self._parts:
                self._ask("SELECT RELEASE_LOCK(%s)", self._name("door", part))
            self._gather("begun", _BEGIN_SECONDS, "its tasks did not all begin in time")
            # In this order: a part that sees the first of the two has seen the second before.
            self._ask("SELECT RELEASE_LOCK(%s)", self._name("locked"))
            self._ask("UNLOCK TABLES")
            self.missed = None
            for part in self._parts:
                self._ask("SELECT RELEASE_LOCK(%s)", self._name("go", part))
        except (_OneStream, EmatixError) as error:
            said = (
                f"the server says: {error.what}" if isinstance(error, EmatixError) else str(error)
            )
            self.missed = self.missed and said
            # Whoever waits is let go, to find that it is too late.
            self._close()

    def _gather(self, what: str, seconds: float, late: str) -> None:
        """Wait until the parts hold all locks of one kind."""
        names = [self._name(what, part) for part in self._parts]
        held = " AND ".join("IS_USED_LOCK(%s) IS NOT NULL" for _ in names)
        until = time.monotonic() + seconds
        while not self._ask(f"SELECT {held}", *names):
            if time.monotonic() > until or self._ended.wait(_POLL_SECONDS):
                raise _OneStream(late)


def read(backend: MySQL, engine: Engine, query: SourceQuery) -> DataFrame:
    """JDBC over the wrapped query, then the Spark form of every column."""
    engine.require_jars(backend.jars)
    with backend.session(read_only=True) as session:
        fields = backend.fields_of(session, query)
        mode = sql_mode(session.one("SELECT @@SESSION.sql_mode"))
        spread = bool(getattr(engine, "distributed", False))
        parts = in_parts(backend, session, query, slots(configured()), spread=spread)
    reading = _Reading(backend, engine, fields, mode)
    rows = None
    if parts.conditions:
        try:
            rows = reading.together(parts)
        except _OneStream as reason:
            logger.warning("connection %r is read in one stream: %s", backend.name, reason)
    if rows is None:
        rows = reading.part(backend.subquery(query))
    return rows.selectExpr(*(f"{in_form(f.name, f)} AS {quote(f.name)}" for f in fields))


@dataclass(frozen=True)
class _Reading:
    backend: MySQL
    engine: Engine
    fields: Sequence[Any]
    mode: str

    def together(self, parts: Parts) -> DataFrame:
        """All parts, spooled; raises ``_OneStream`` where they did not begin together."""
        from ematix_flow.engine.failures import translate

        backend, folder = self.backend, spool_folder() / "parts"
        gate = Gate(backend, parts.table, len(parts.conditions))
        failed: Exception | None = None
        frames = [
            self.part(parts.rows, before=gate.before(i), condition=condition)
            for i, condition in enumerate(parts.conditions)
        ]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionAll(frame)
        try:
            with gate.watched():
                whole.write.option("compression", "none").parquet(folder.as_uri())
        except Exception as error:  # noqa: BLE001 - what counts is known when the gate is closed
            failed = error
        told = None if failed is None else translate(failed, connection=backend.name)
        if gate.missed is not None and not isinstance(told, Cancelled):
            raise _OneStream(gate.missed) from failed
        if told is not None:
            raise told from failed
        return self.engine.spark.read.parquet(folder.as_uri())

    def part(
        self, rows: str, *, before: Sequence[str] = (), condition: str | None = None
    ) -> DataFrame:
        """What a condition leaves of the rows, or all of them, as they come over the wire."""
        names = [quoted(f.name, "mysql") for f in self.fields]
        items = [
            f"{on_the_wire(name, field)} AS {name}"
            for name, field in zip(names, self.fields, strict=True)
        ]
        where = f" WHERE {condition}" if condition else ""
        backend, address = self.backend, self.backend.address()
        session = f"SET SESSION time_zone = '+00:00', sql_mode = '{self.mode}'"
        options: dict[str, Any] = {
            "url": _jdbc_url(address),
            "driver": "com.mysql.cj.jdbc.Driver",
            "dbtable": f"(SELECT {', '.join(items)} FROM {rows}{where}) AS jdbc_source",
            "fetchsize": _STREAMED,
            "characterEncoding": "UTF-8",
            "connectionTimeZone": "UTC",
            "allowPublicKeyRetrieval": "true",
            **({"allowMultiQueries": "true"} if before else {}),
            "sslMode": _tls(backend),
            "sessionInitStatement": "; ".join((session, *before)),
            **{k: address[k] for k in ("user", "password") if k in address},
        }
        return self.engine.spark.read.format("jdbc").options(**options).load()


def _jdbc_url(address: Mapping[str, Any]) -> str:
    where = f"{address.get('host', 'localhost')}:{address.get('port', 3306)}"
    return f"jdbc:mysql://{where}/{address.get('database', '')}"


def _tls(backend: MySQL) -> str:
    given = backend.arguments()
    if any(given.get(k) for k in ("ssl_ca", "ssl_cert", "ssl_verify_cert")):
        raise Unsupported(
            f"connection {backend.name!r} verifies certificates, which reading does not do yet",
            fix="leave the ssl_ options out where it is a source; it is still encrypted",
        )
    return "DISABLED" if given.get("ssl_disabled") else "PREFERRED"


def spare_connections(session: Session) -> int:
    """Half of the connections that could still be opened."""
    ((most, mine),) = session.rows(
        "SELECT @@GLOBAL.max_connections, @@SESSION.max_user_connections"
    )
    ((_, there),) = session.rows("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    return max(0, min(int(most), int(mine) or int(most)) - int(there)) // 2
