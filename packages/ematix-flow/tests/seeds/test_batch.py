"""The documented pipelines that append or truncate: they run, and land the source's rows."""

from __future__ import annotations

from datetime import timezone
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.normalize import apply_chain
from ematix_flow.types import Text

from .preambles import CUSTOMER_DIM, EVENTS, IMPORTS, WAREHOUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Database, Said, Snippet

FIRST = """
from ematix_flow import ematix, ManagedTable, Annotated, BigInt, Text, TimestampTZ, pk

@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_URL}"

class Events(ManagedTable):
    __schema__ = "analytics"
    __tablename__ = "events"

    event_id: Annotated[BigInt, pk()]
    name: Text | None
    received_at: TimestampTZ

@ematix.pipeline(
    target=Events,
    target_connection="warehouse",
    schedule="*/5 * * * *",
    mode="append",
)
def ingest_events(conn):
    return "SELECT event_id, name, received_at FROM raw.events"
"""

MINIMUM = """
from typing import Annotated
from ematix_flow import ematix, pk
from ematix_flow.types import BigInt, Text, TimestampTZ

@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_DSN}"

@ematix.table(schema="analytics")
class Events:
    event_id: Annotated[BigInt, pk()]
    name: Text | None
    received_at: TimestampTZ

@ematix.pipeline(
    target=Events,
    target_connection="warehouse",
    schedule="*/5 * * * *",
    mode="append",
)
def ingest_events(conn):
    return "SELECT event_id, name, received_at FROM raw.events"
"""

APPEND = """
@ematix.pipeline(target=Events, mode="append", schedule="*/5 * * * *")
def ingest(conn):
    return "SELECT event_id, name, received_at FROM raw.events"
"""

TRUNCATE = APPEND.replace('mode="append"', 'mode="truncate"')

STATIC = """
@ematix.pipeline(
    target=Events,
    target_connection="warehouse",
    source_table="raw.events",
    mode="append",
    schedule="0 * * * *",
)
def sync():      pass
"""


@pytest.fixture(autouse=True)
def variables(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names the snippets look up all lead to one database."""
    for name in ("WAREHOUSE_URL", "WAREHOUSE_DSN", "EMATIX_FLOW_DSN"):
        monkeypatch.setenv(name, database.url)


def assert_loaded(database: Database, times: int = 1) -> None:
    source = database.query("SELECT event_id, name, received_at FROM raw.events")
    target = database.query("SELECT event_id, name, received_at FROM analytics.events")
    assert sorted(target) == sorted(source * times)
    assert len(source) == 3


@pytest.mark.parametrize("snippet", [FIRST, MINIMUM], ids=["first", "minimum"])
def test_ingest_events(snippet: str, my_pipelines: Snippet, database: Database) -> None:
    result = my_pipelines(snippet).ingest_events.sync()
    assert (result.status, result.rows_inserted, result.path) == ("succeeded", 3, "same_db")
    assert_loaded(database)


def test_ingest_events_by_spark(my_pipelines: Snippet, database: Database, engine: object) -> None:
    result = my_pipelines(FIRST).ingest_events.sync(force_path="spark")
    assert (result.rows_inserted, result.path) == (3, "spark")
    assert_loaded(database)


def test_append_to_the_default_connection(my_pipelines: Snippet, database: Database) -> None:
    ingest = my_pipelines(IMPORTS, EVENTS, APPEND).ingest
    assert ingest().rows_inserted == 3
    assert_loaded(database)


def test_programmatic(my_pipelines: Snippet, database: Database) -> None:
    my_pipelines(IMPORTS, EVENTS, APPEND)

    from my_pipelines import ingest  # type: ignore[import-not-found]

    ingest.sync(keys=("event_id",))

    assert_loaded(database)


def test_truncate_reloads(my_pipelines: Snippet, database: Database) -> None:
    ingest = my_pipelines(IMPORTS, EVENTS, TRUNCATE).ingest
    for _ in range(2):
        assert ingest.sync().rows_inserted == 3
        assert_loaded(database)


def test_static_source(my_pipelines: Snippet, database: Database) -> None:
    sync = my_pipelines(IMPORTS, WAREHOUSE, EVENTS, STATIC).sync
    assert sync.sync().rows_inserted == 3
    assert_loaded(database)


def test_normalizers_clean_what_they_load(my_pipelines: Snippet, database: Database) -> None:
    load = """
@ematix.pipeline(target=CustomerDim, target_connection="warehouse", mode="truncate")
def sync_customers(conn):
    return "SELECT customer_id, email, name, updated_at FROM raw.customers"
"""
    module = my_pipelines(IMPORTS, WAREHOUSE, CUSTOMER_DIM, load)
    result = module.sync_customers.sync()
    assert (result.rows_inserted, result.path) == (2, "same_db")
    columns = {c.name: c for c in module.CustomerDim.__table__.columns}

    def cleaned(name: str, value: Any) -> Any:
        return apply_chain(columns[name].normalizers, value, Text())

    expected = [
        (key, cleaned("email", email), name, cleaned("updated_at", at))
        for key, email, name, at in database.query("SELECT * FROM raw.customers ORDER BY 1")
    ]
    found = database.query(
        "SELECT customer_id, email, name, updated_at FROM analytics.customer_dim ORDER BY 1"
    )
    in_utc = [(k, e, n, at.replace(tzinfo=at.tzinfo or timezone.utc)) for k, e, n, at in expected]
    assert found == in_utc


class TestCommands:
    """The commands that are documented beside these pipelines."""

    def test_run(
        self, flow: Callable[[str], Said], my_pipelines: Snippet, database: Database
    ) -> None:
        my_pipelines(MINIMUM)
        said = flow("flow run --module my_pipelines ingest_events")
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith("ingest_events → analytics.events: 3 rows read, 3 inserted in ")
        assert_loaded(database)

    def test_preview(
        self, flow: Callable[[str], Said], my_pipelines: Snippet, database: Database
    ) -> None:
        my_pipelines(MINIMUM)
        said = flow("flow preview --module my_pipelines ingest_events")
        assert (said.code, said.err) == (0, "")
        assert "SELECT event_id, name, received_at FROM raw.events" in said.out
        assert database.query("SELECT to_regclass('analytics.events')") == [(None,)]

    def test_validate(
        self, flow: Callable[[str], Said], my_pipelines: Snippet, database: Database
    ) -> None:
        my_pipelines(MINIMUM)
        said = flow("flow validate --module my_pipelines ingest_events")
        assert (said.code, said.err) == (0, "")
        assert "ingest_events" in said.out
        assert database.query("SELECT to_regclass('analytics.events')") == [(None,)]

    def test_status_list_and_history(
        self, flow: Callable[[str], Said], my_pipelines: Snippet
    ) -> None:
        my_pipelines(MINIMUM)
        assert "ingest_events" in flow("flow list --module my_pipelines").out
        assert flow("flow run --module my_pipelines ingest_events").code == 0
        said = flow("flow status --module my_pipelines")
        assert (said.code, said.err) == (0, "")
        assert "succeeded" in said.out
        assert "ingest_events" in flow("flow runs list").out

    def test_one_shot(
        self, flow: Callable[[str], Said], my_pipelines: Snippet, database: Database
    ) -> None:
        my_pipelines(IMPORTS, EVENTS, APPEND)
        for line in (
            "flow validate --module my_pipelines ingest",
            "flow preview --module my_pipelines ingest",
            "flow run     --module my_pipelines ingest",
        ):
            assert flow(line).code == 0
        assert_loaded(database)

    def test_connections(
        self, flow: Callable[[str], Said], my_pipelines: Snippet, database: Database, folder: object
    ) -> None:
        my_pipelines(MINIMUM)
        said = flow("flow connections list --module my_pipelines")
        assert said.code == 0
        assert "${WAREHOUSE_DSN}" in said.out
        said = flow("flow connections check warehouse --module my_pipelines")
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith("warehouse: ok")
        assert flow(f"flow connections set warehouse url={database.url}").code == 0
        said = flow("flow connections check warehouse")
        assert said.code == 0
        password = database.url.partition("@")[0].rpartition(":")[2]
        assert password not in said.out + said.err
