"""Databases read through Spark, in parts or in one stream: every row once, all of one moment."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    EmatixError,
    PostgresConnection,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.backends import postgres, splits
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.postgres import Postgres
from ematix_flow.backends.postgres_reads import in_parts
from ematix_flow.backends.spool import spooling
from ematix_flow.cli.asking import _show
from ematix_flow.engine.settings import derive
from ematix_flow.run.preview import preview_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine
    from services.postgres import PostgresServer

ROWS = 12_000
TABLES = {
    "bigint key": "CREATE TABLE held AS SELECT g AS id, g % 7 AS x FROM numbers; "
    "ALTER TABLE held ADD PRIMARY KEY (id)",
    "negative numeric key": "CREATE TABLE held AS SELECT (6000.5 - g)::numeric(12, 3) AS id, "
    "g AS x FROM numbers; ALTER TABLE held ADD PRIMARY KEY (id)",
    "skewed key": "CREATE TABLE held AS SELECT CASE WHEN g % 100 = 0 THEN g * 1000000::bigint "
    "ELSE g END AS id, g AS x FROM numbers ORDER BY 1; ALTER TABLE held ADD PRIMARY KEY (id)",
    "rows in no order": "CREATE TABLE held AS SELECT g AS id, md5(g::text) AS x FROM numbers "
    "ORDER BY md5(g::text); ALTER TABLE held ADD PRIMARY KEY (id)",
    "uuid key": "CREATE TABLE held AS SELECT md5(g::text)::uuid AS id, g AS x FROM numbers; "
    "ALTER TABLE held ADD PRIMARY KEY (id)",
    "text key": "CREATE TABLE held AS SELECT (CASE g % 3 WHEN 0 THEN 'é''' WHEN 1 THEN E'\\\\' "
    "ELSE 'Z ?' END || g) AS id, g AS x FROM numbers ORDER BY 1; "
    "ALTER TABLE held ADD PRIMARY KEY (id)",
    "text key by bytes": 'CREATE TABLE held (id text COLLATE "C" PRIMARY KEY, x int); '
    "INSERT INTO held SELECT chr(65 + g % 50) || g, g FROM numbers ORDER BY 1",
    "text key without case": "CREATE COLLATION lax (provider = icu, locale = 'und-u-ks-level2', "
    "deterministic = false); CREATE TABLE held (id text COLLATE lax, x int); CREATE INDEX ON held "
    "(id); INSERT INTO held SELECT CASE WHEN g % 2 = 0 THEN 'a' ELSE 'A' END || g / 4, g "
    "FROM numbers ORDER BY g",
    "nullable key": "CREATE TABLE held AS SELECT CASE WHEN g % 9 > 0 THEN g END AS id, g AS x "
    "FROM numbers; CREATE UNIQUE INDEX ON held (id)",
    "mostly NULL": "CREATE TABLE held AS SELECT CASE WHEN g % 9 = 0 THEN g END AS id, g AS x "
    "FROM numbers; CREATE INDEX ON held (id)",
    "composite key": "CREATE TABLE held AS SELECT (g % 3)::smallint AS tenant, g AS id, 'n' AS x "
    "FROM numbers ORDER BY 1, 2; ALTER TABLE held ADD PRIMARY KEY (tenant, id)",
    "instants": "CREATE TABLE held AS SELECT timestamptz '2024-03-31 00:00Z' + g * interval "
    "'7 min' AS seen, day::date, g AS x FROM numbers, LATERAL (SELECT date '2024-01-01' + g AS day)"
    " AS d; CREATE INDEX ON held (seen); CREATE INDEX ON held (day)",
    "floats": "CREATE TABLE held AS SELECT CASE g % 500 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' "
    "WHEN 2 THEN 'Infinity' ELSE g / 7.0 END::float8 AS id, g AS x FROM numbers ORDER BY 1; "
    "CREATE INDEX ON held (id)",
    "no key at all": "CREATE TABLE held AS SELECT 1 AS id, 'same' AS x FROM numbers",
    "partitions": "CREATE TABLE held (id int, region text, PRIMARY KEY (id, region)) PARTITION BY "
    "LIST (region); CREATE TABLE held_n PARTITION OF held FOR VALUES IN ('north'); CREATE TABLE "
    "held_s PARTITION OF held DEFAULT; INSERT INTO held SELECT g, CASE WHEN g % 10 = 0 THEN "
    "'north' ELSE 'south' || g END FROM numbers",
    "odd names": 'CREATE TABLE held AS SELECT g AS "select", g AS "日 付" FROM numbers; '
    'ALTER TABLE held ADD PRIMARY KEY ("日 付")',
    "never analyzed": "CREATE TABLE held (id int PRIMARY KEY, x text); INSERT INTO held "
    "SELECT g, 'x' FROM numbers",
}


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    made = postgres.create_database()
    yield made
    postgres.drop_database(made.rsplit("/", 1)[1])


@pytest.fixture
def run_sql(url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Asks by a driver of its own; every statement commits."""
    with psycopg.connect(url, autocommit=True, options="-c TimeZone=UTC") as raw:

        def run(sql: str) -> list[tuple[Any, ...]]:
            cursor = raw.execute(sql)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

        run(
            f"CREATE VIEW numbers AS SELECT g FROM generate_series(1, {ROWS}) AS g; "
            "CREATE SCHEMA app"
        )
        yield run


@pytest.fixture
def origin(url: str, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    """The source; four tasks at a time, and few rows are enough to be cut."""
    monkeypatch.setattr(splits, "_LEAST_ROWS", ROWS // 12)
    monkeypatch.setattr(postgres, "configured", lambda: derive(master="local[4]"))
    return Postgres(PostgresConnection(name="origin", url=url))


def plain(rows: list[Any]) -> Counter[tuple[str, ...]]:
    """Rows as a multiset of texts that Spark and psycopg agree about."""
    return Counter(tuple(_text(value) for value in row) for row in rows)


def _text(value: Any) -> str:
    naive = getattr(value, "tzinfo", None) is not None
    return str(value.replace(tzinfo=None) if naive else value)


def sizes(frame: DataFrame) -> list[int]:
    """How many rows each part has."""
    counted = frame.selectExpr("spark_partition_id() AS part").groupBy("part").count().collect()
    return sorted(row["count"] for row in counted)


@pytest.mark.parametrize("name", TABLES)
def test_all_parts_together_are_the_table(
    name: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql(TABLES[name])
    if name != "never analyzed":
        run_sql("ANALYZE held")
    query = SourceQuery("SELECT * FROM held")
    how = origin.how_read(query)
    assert " splits by " in how, how
    assert how.endswith("on one snapshot")
    with spooling():
        frame = origin.read(engine, query)
        parts = sizes(frame)
        assert plain(frame.collect()) == plain(run_sql("SELECT * FROM held"))
    assert sum(parts) == ROWS
    # No part has much more to do than the others.
    assert len(parts) >= 4
    assert parts[-1] < ROWS / 3


@pytest.mark.parametrize(
    ("sql", "splits_by"),
    [
        ("SELECT x, id FROM app.held WHERE id > 4000", "id"),
        ("SELECT * FROM (SELECT * FROM app.held) AS s WHERE id >= 2000 OR id IS NULL", ""),
        ("SELECT upper(x) AS y FROM app.held AS h WHERE h.x IS DISTINCT FROM 'x 7' -- all", ""),
        ('SELECT "x" FROM "app"."held" WHERE NOT EXISTS (SELECT 1 WHERE id = 3);', ""),
    ],
)
def test_a_query_of_one_table_is_cut_too(
    sql: str, splits_by: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql("CREATE TABLE app.held AS SELECT g AS id, 'x ' || g AS x FROM numbers")
    run_sql("ALTER TABLE app.held ADD PRIMARY KEY (id); ANALYZE app.held")
    query = SourceQuery(sql)
    assert f" splits by {splits_by}" in origin.how_read(query)
    with spooling():
        frame = origin.read(engine, query)
        parts = sizes(frame)
        assert plain(frame.collect()) == plain(run_sql(sql))
    assert parts[-1] < sum(parts) / 2


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM seen", "it reads a view"),
        ("SELECT DISTINCT x FROM held", "more than a SELECT from one table"),
        ("SELECT id FROM held ORDER BY id LIMIT 9000", "more than a SELECT from one table"),
        ("SELECT h.id FROM held h JOIN held i USING (id)", "more than a SELECT from one table"),
        ("SELECT id, row_number() OVER (ORDER BY id) FROM held", "more than a SELECT"),
        ("SELECT * FROM held WHERE id < 100", "there is little to read"),
        ("SELECT 1 AS ematix_part, id FROM held", "the server says: "),
        ("SELECT * FROM parent", "other tables inherit"),
        ("SELECT id, (SELECT count(*) FROM held WHERE x < 3) FROM held", "more than a SELECT"),
        ("SELECT * FROM held WHERE x IN (SELECT y FROM other)", "more than a SELECT"),
    ],
)
def test_other_queries_are_read_in_one_stream(
    sql: str, reason: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql(f"{TABLES['bigint key']}; CREATE VIEW seen AS SELECT * FROM held")
    run_sql("CREATE TABLE parent (LIKE held); CREATE TABLE child () INHERITS (parent)")
    run_sql("CREATE TABLE other AS SELECT x AS y FROM held")
    run_sql("INSERT INTO parent SELECT * FROM held; INSERT INTO child SELECT * FROM held; ANALYZE")
    query = SourceQuery(sql)
    how = origin.how_read(query)
    assert how.startswith("in one stream: ")
    assert reason in how
    with spooling():
        frame = origin.read(engine, query)
        assert len(sizes(frame)) == 1
        assert plain(frame.collect()) == plain(run_sql(sql))


def test_a_server_with_no_connection_to_spare_is_read_in_one_stream(
    url: str, origin: Postgres, run_sql: Callable[[str], Any]
) -> None:
    run_sql(TABLES["bigint key"])
    name = url.rsplit("/", 1)[1]
    run_sql(f'ALTER DATABASE "{name}" CONNECTION LIMIT 4')
    assert "hardly a connection" in origin.how_read(SourceQuery("SELECT * FROM held"))


def test_one_task_slot_and_wide_rows(
    origin: Postgres,
    run_sql: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_sql("CREATE TABLE held (id int PRIMARY KEY, document text)")
    run_sql("ALTER TABLE held ALTER document SET STORAGE EXTERNAL")
    run_sql("INSERT INTO held SELECT g, repeat('x', 50000) FROM numbers WHERE g <= 1000")
    run_sql("ANALYZE held")
    query = SourceQuery("SELECT * FROM held")
    # Few rows, but 50 MB of them, of which the planner sees only where they are.
    assert " splits by " in origin.how_read(query)
    with origin.session(read_only=True) as session:
        assert in_parts(origin, session, query, 1).fetch < 1000
    monkeypatch.setattr(postgres, "configured", lambda: derive(master="local[1]"))
    assert origin.how_read(query) == "in one stream: Spark runs one task at a time"


# The message with which a server tells the number of its process.
_OWN_NUMBER = re.compile(rb"(K\x00\x00\x00\x0c)....", re.S)


class Pooler:
    """A proxy that, as pools do, gives its own number for that of the server's process."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = [self._listener]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for pair in ((client, server, False), (server, client, True)):
                    self._threads.append(threading.Thread(target=self._forward, args=pair))
                    self._threads[-1].start()

    @staticmethod
    def _forward(origin: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := origin.recv(1 << 16):
                if answers:
                    data = _OWN_NUMBER.sub(lambda found: found[1] + bytes(3) + b"\x01", data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for held in self._open:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()
        for thread in self._threads:
            thread.join()


def test_behind_a_connection_pool_one_stream_is_read(
    url: str, origin: Postgres, run_sql: Callable[[str], Any]
) -> None:
    run_sql(f"{TABLES['bigint key']}; ANALYZE held")
    parts = urlsplit(url)
    with contextlib.closing(Pooler(str(parts.hostname), int(parts.port or 0))) as pooler:
        through = url.replace(f":{parts.port}/", f":{pooler.port}/")
        source = Postgres(PostgresConnection(name="pooled", url=through))
        how = source.how_read(SourceQuery("SELECT * FROM held"))
    assert how == "in one stream: a connection pool stands before the server"


@pytest.mark.parametrize("name", ["bigint key", "uuid key", "partitions"])
def test_what_is_committed_between_the_parts_is_in_none(
    name: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql(f"{TABLES[name]}; ANALYZE held")
    with spooling():
        frame = origin.read(engine, SourceQuery("SELECT * FROM held"))
        before = plain(run_sql("SELECT * FROM held"))
        # Rows move from one part to another, go and come.
        if name == "uuid key":
            run_sql("UPDATE held SET id = md5(id::text)::uuid")
        else:
            run_sql(f"UPDATE held SET id = id + {2 * ROWS} WHERE id < {ROWS // 2}")
        run_sql("DELETE FROM held WHERE ctid > '(20,1)'")
        run_sql("VACUUM held")
        assert plain(frame.collect()) == before
        # Whoever looks again looks at the same moment.
        assert plain(frame.collect()) == before


def test_a_sum_that_writers_keep_is_the_same_in_every_read(
    url: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql("CREATE TABLE held AS SELECT g AS id, 100 AS amount FROM numbers")
    run_sql("ALTER TABLE held ADD PRIMARY KEY (id); ANALYZE held")
    ended = threading.Event()
    moved = threading.Semaphore(0)

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as raw:
            while not ended.is_set():
                # From the first part to the last, in one transaction.
                raw.execute(
                    f"UPDATE held SET amount = amount + CASE WHEN id < {ROWS // 4} THEN -1 "
                    f"WHEN id > {ROWS - ROWS // 4 + 1} THEN 1 ELSE 0 END "
                    f"WHERE id < {ROWS // 4} OR id > {ROWS - ROWS // 4 + 1}"
                )
                moved.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        firsts = []
        for _ in range(4):
            assert moved.acquire(timeout=60)
            with spooling():
                frame = origin.read(engine, SourceQuery("SELECT * FROM held"))
                total, first = frame.selectExpr(
                    "sum(amount)", "max(CASE WHEN id = 1 THEN amount END)"
                ).collect()[0]
            assert total == 100 * ROWS
            firsts.append(first)
        assert len(set(firsts)) > 1
    finally:
        ended.set()
        writer.join()


@pytest.mark.parametrize(
    "rewrite",
    [
        "TRUNCATE held",
        "BEGIN; TRUNCATE held; INSERT INTO held SELECT g, 1 FROM numbers; COMMIT",
        "VACUUM FULL held",
        "DROP TABLE held; CREATE TABLE held (id int, x int)",
    ],
)
def test_a_table_that_is_rewritten_before_all_parts_are_read_is_no_result(
    rewrite: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql(f"{TABLES['bigint key']}; ANALYZE held")
    with spooling():
        frame = origin.read(engine, SourceQuery("SELECT * FROM held"))
        for statement in rewrite.split("; "):
            run_sql(statement)
        with pytest.raises(Exception, match=r"rewritten while it was read|does not exist"):
            frame.collect()


def idle_holders(run_sql: Callable[[str], Any]) -> int:
    (count,) = run_sql(
        "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'ematix-flow' AND backend_xmin IS NOT NULL"
    )[0]
    return int(count)


def test_a_snapshot_is_kept_as_long_as_the_read_and_no_longer(
    url: str, origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql(f"{TABLES['bigint key']}; ANALYZE held")
    name = url.rsplit("/", 1)[1]
    # A server may end who idles inside a transaction; a snapshot does nothing else.
    run_sql(f"ALTER DATABASE \"{name}\" SET idle_in_transaction_session_timeout = '50ms'")
    with spooling():
        frame = origin.read(engine, SourceQuery("SELECT * FROM held"))
        assert idle_holders(run_sql) == 1
        idle = "SELECT min(clock_timestamp() - state_change) FROM pg_stat_activity "
        idle += "WHERE datname = current_database() AND state = 'idle in transaction'"
        while not run_sql(f"SELECT ({idle}) > interval '200 ms'")[0][0]:
            pass
        assert frame.count() == ROWS
    wait_until(lambda: idle_holders(run_sql) == 0)
    # Where nobody tells when the rows have been read, no snapshot is kept for them.
    alone = origin.read(engine, SourceQuery("SELECT * FROM held"))
    assert idle_holders(run_sql) == 0
    assert alone.count() == ROWS


def wait_until(met: Callable[[], bool]) -> None:
    """The server notices a closed connection a moment later."""
    waiting = threading.Event()
    for _ in range(500):
        if met():
            return
        waiting.wait(0.02)
    pytest.fail("it never came to be")


@ematix.table(schema="mart")
class Held:
    id: Annotated[BigInt, pk()]
    x: Text | None


def test_a_run_gives_its_snapshot_back_and_preview_says_how_it_reads(
    tmp_path: Path,
    origin: Postgres,
    run_sql: Callable[[str], Any],
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_sql(f"{TABLES['rows in no order']}; ANALYZE held")
    register_connection(origin.connection)
    register_connection(DuckDBConnection(name="store", path=str(tmp_path / "store.duckdb")))

    @ematix.pipeline(target=Held, source_connection="origin", target_connection="store")
    def load(conn: Any) -> str:
        return "SELECT id, x FROM held"

    preview = preview_pipeline(load.spec)
    assert preview.path == "spark"
    assert preview.source_read == "in 4 splits by row position, on one snapshot"
    assert preview.to_dict()["source_read"] == preview.source_read
    _show(preview, first=True)
    assert "\nread      in 4 splits by row position, on one snapshot\n" in capsys.readouterr().out
    assert load.sync().counts.inserted == ROWS
    wait_until(lambda: idle_holders(run_sql) == 0)

    @ematix.pipeline(target=Held, source_connection="origin", target_connection="store")
    def fails(conn: Any) -> str:
        return "SELECT id, 1 / (id - 5000) || x AS x FROM held"

    with pytest.raises(EmatixError, match="division by zero"):
        fails.sync()
    wait_until(lambda: idle_holders(run_sql) == 0)


def test_a_run_may_replace_the_table_that_it_reads(
    origin: Postgres, run_sql: Callable[[str], Any], engine: Engine
) -> None:
    run_sql("CREATE SCHEMA mart; CREATE TABLE mart.held (id bigint PRIMARY KEY, x text)")
    run_sql("INSERT INTO mart.held SELECT g, md5(g::text) FROM numbers ORDER BY 2")
    run_sql("ANALYZE mart.held")
    register_connection(origin.connection)

    @ematix.pipeline(
        target=Held,
        source_connection="origin",
        target_connection="origin",
        mode="truncate",
        transform_sql="SELECT id, upper(x) AS x FROM source",
    )
    def in_place(conn: Any) -> str:
        return "SELECT id, x FROM mart.held"

    expected = plain(run_sql("SELECT id, upper(x) FROM mart.held"))
    in_place.sync()
    assert plain(run_sql("SELECT id, x FROM mart.held")) == expected
