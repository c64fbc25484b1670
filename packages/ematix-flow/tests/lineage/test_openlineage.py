"""Events of runs against OpenLineage's own model; receivers that are slow, down or gone."""

from __future__ import annotations

import json
import threading
import time
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import attr
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    PostgresConnection,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.config import connect
from ematix_flow.errors import ConfigError, EmatixError, NotAvailableYet
from ematix_flow.lineage.names import Names
from ematix_flow.model import TableName
from ematix_flow.run.log import open_run_log

FACETS = {
    "columnLineage": ("column_lineage_dataset", "ColumnLineageDatasetFacet"),
    "documentation": ("documentation_job", "DocumentationJobFacet"),
    "errorMessage": ("error_message_run", "ErrorMessageRunFacet"),
    "jobType": ("job_type_job", "JobTypeJobFacet"),
    "outputStatistics": (
        "output_statistics_output_dataset",
        "OutputStatisticsOutputDatasetFacet",
    ),
    "processing_engine": ("processing_engine_run", "ProcessingEngineRunFacet"),
    "schema": ("schema_dataset", "SchemaDatasetFacet"),
    "sql": ("sql_job", "SQLJobFacet"),
}


def module(name: str) -> types.ModuleType:
    return import_module(f"openlineage.client.generated.{name}")


def structured(kind: Any, value: Any) -> Any:
    """A value as the type that OpenLineage's model gives it; anything it does not know fails."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (a for a in arguments if a is not type(None))
        return structured(kind, value)
    if origin is list:
        assert isinstance(value, list)
        return [structured(arguments[0], item) for item in value]
    if origin is dict:
        assert isinstance(value, dict)
        facets = arguments[1].__name__.endswith("Facet")
        return {
            name: structured(facet(name) if facets else arguments[1], item)
            for name, item in value.items()
        }
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if attr.has(kind):
        return modelled(kind, value)
    assert isinstance(value, kind), (kind, value)
    return value


def facet(name: str) -> Any:
    file, kind = FACETS[name]
    return getattr(module(file), kind)


def modelled(kind: Any, value: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    schema = next((n for n in ("_schemaURL", "schemaURL") if n in hints), None)
    if schema is not None:
        assert value[schema] == kind._get_schema()
    given = {n: structured(hints[n], v) for n, v in value.items() if n != schema}
    # attrs takes a private field by its plain name.
    return kind(**{name.lstrip("_"): item for name, item in given.items()})


def check(event: dict[str, Any]) -> None:
    """The event is one of OpenLineage's: nothing missing, nothing unknown, every type right."""
    from openlineage.client.serde import Serde

    run_event = modelled(module("base").RunEvent, event)
    again = json.loads(Serde.to_json(run_event))
    assert without_empty(again) == without_empty(event)


def without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        held = {name: without_empty(item) for name, item in value.items()}
        return {name: item for name, item in held.items() if item not in (None, {}, [])}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


@ematix.table(schema="shop")
class Totals:
    country: Annotated[Text, pk()]
    total: BigInt


@pytest.fixture(autouse=True)
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_NAMESPACE", "OPENLINEAGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))
    with connect("warehouse") as live:
        live.execute("CREATE TABLE orders (country TEXT, amount BIGINT, paid BOOLEAN)")
        live.execute("INSERT INTO orders VALUES ('DE', 1, true), ('FR', 2, true)")
    return tmp_path / "warehouse.duckdb"


def pipeline(sql: str = "") -> Any:
    @ematix.pipeline(target=Totals, target_connection="warehouse", mode="truncate")
    def sum_up(conn: Any) -> str:
        """Totals of every country."""
        return sql or (
            "SELECT country, sum(amount)::BIGINT AS total FROM orders WHERE paid "
            "AND 'password=hunter22' <> country GROUP BY country"
        )

    return sum_up


@contextmanager
def receiving(answer: int = 200, seconds: float = 0.0) -> Iterator[tuple[str, list[Any]]]:
    """An HTTP receiver; what it got, with path and token."""
    got: list[Any] = []
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            gone.wait(seconds)
            got.append((self.path, self.headers["Authorization"], json.loads(body)))
            try:
                self.send_response(answer)
                self.end_headers()
            except OSError:
                pass  # whoever asked has gone

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            gone.set()
            server.shutdown()
            thread.join()


def test_events_of_a_run_in_a_file(tmp_path: Path, warehouse: Path) -> None:
    (tmp_path / ".ematix-flow.toml").write_text(
        f'[project]\nopenlineage = "file://{tmp_path}/told/events.jsonl"\n'
    )
    result = pipeline().sync()
    lines = (tmp_path / "told" / "events.jsonl").read_text().splitlines()
    start, complete = events = [json.loads(line) for line in lines]
    for event in events:
        check(event)
        assert event["run"]["runId"] == result.run_id
        assert event["job"]["name"] == "sum_up"
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    (target,), (source,) = complete["outputs"], complete["inputs"]
    place = f"duckdb:{warehouse}"
    assert (source["namespace"], source["name"]) == (place, "main.orders")
    assert (target["namespace"], target["name"]) == (place, "shop.totals")
    assert target["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert [f["name"] for f in target["facets"]["schema"]["fields"]] == ["country", "total"]
    lineage = target["facets"]["columnLineage"]
    origin = {"namespace": place, "name": "main.orders"}
    assert lineage["fields"]["total"]["inputFields"] == [
        {**origin, "field": "amount", "transformations": [{"type": "DIRECT"}]}
    ]
    indirect = {f["field"]: f["transformations"][0]["subtype"] for f in lineage["dataset"]}
    assert indirect == {"country": "GROUP_BY", "paid": "FILTER"} | indirect
    assert "sum(amount)" in complete["job"]["facets"]["sql"]["query"]
    assert "hunter22" not in json.dumps(events)


def test_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", f"file://{tmp_path}/events.jsonl")
    with pytest.raises(EmatixError):
        pipeline("SELECT nothing FROM orders").sync()
    start, fail = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    check(fail)
    assert (start["eventType"], fail["eventType"]) == ("START", "FAIL")
    assert "nothing" in fail["run"]["facets"]["errorMessage"]["message"]


def test_a_dry_run_tells_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", f"file://{tmp_path}/events.jsonl")
    pipeline().dry_run()
    assert not (tmp_path / "events.jsonl").exists()


def test_over_http_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "tok-en-1234")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    with receiving() as (url, got):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        pipeline().sync()
    assert [(path, token) for path, token, _ in got] == [
        ("/api/v1/lineage", "Bearer tok-en-1234")
    ] * 2
    assert [event["eventType"] for _, _, event in got] == ["START", "COMPLETE"]
    for _, _, event in got:
        check(event)
        assert event["job"]["namespace"] == "shop"
        assert "tok-en-1234" not in json.dumps(event)


def test_a_path_of_the_address_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as (url, got):
        monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", f"{url}/v2/events?source=flow")
        pipeline().sync()
    assert {path for path, _, _ in got} == {"/v2/events?source=flow"}


def _seconds(run: Any) -> float:
    began = time.monotonic()
    assert run.sync().counts.inserted == 2
    return time.monotonic() - began


def test_receivers_that_do_not_receive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = pipeline()
    quiet = min(_seconds(run) for _ in range(2))
    with receiving() as (gone, _):
        pass
    with receiving(answer=503) as (broken, refused), receiving(seconds=30) as (stuck, _):
        for url in (gone, broken, stuck):
            caplog.clear()
            secret = url.replace("//", "//user:pass-word-9@")
            monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", secret if url == gone else url)
            # Two seconds, and what a busy machine may add.
            assert _seconds(run) < quiet + 4, url
            assert "OpenLineage: " in caplog.text, url
            assert "pass-word-9" not in caplog.text
    assert len(refused) >= 2


def test_an_event_that_is_refused_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(answer=422) as (url, got):
        monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", url)
        pipeline().sync()
    assert len(got) == 2
    assert "refused an event" in caplog.text


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("kafka://broker:9092/lineage", NotAvailableYet, "Kafka"),
        ("htps://collector", ConfigError, "did you mean 'https'"),
        ("collector:5000", ConfigError, "write file:///path"),
    ],
)
def test_addresses_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, url: str, error: type[EmatixError], says: str
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", url)
    with pytest.raises(error, match=says):
        pipeline().sync()
    log = open_run_log()
    assert log.list() == []  # nothing has begun
    log.close()


def test_datasets_of_servers_are_named_as_openlineage_wants() -> None:
    url = "postgres://user:pass-word-9@db.example/shop?sslmode=require"
    register_connection(PostgresConnection(name="shop", url=url))
    names = Names()
    label = names.table("shop", TableName(None, "orders"))
    assert label == "shop.public.orders"
    assert names.dataset(label) == ("postgres://db.example:5432", "shop.public.orders")


def test_a_wrong_type_in_an_event_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail."""
    monkeypatch.setenv("EMATIX_FLOW_OPENLINEAGE", f"file://{tmp_path}/events.jsonl")
    pipeline().sync()
    event = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    check(event)
    for broken in (
        {**event, "eventType": "DONE"},
        {**event, "run": {"runId": "7"}},
        {**event, "outputs": [{"name": "lonely"}]},
        {**event, "more": 1},
    ):
        with pytest.raises((AssertionError, KeyError, TypeError, ValueError)):
            check(broken)
