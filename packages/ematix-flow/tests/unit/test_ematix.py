"""The decorators: what they make of a declaration, and what they refuse."""

from __future__ import annotations

import inspect
import re
import warnings
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest

from ematix_flow import (
    BigInt,
    Date,
    Double,
    DuckDBConnection,
    KafkaConnection,
    ManagedTable,
    ObjectStoreLocalConnection,
    Pipeline,
    PostgresConnection,
    Target,
    Text,
    TimestampTZ,
    ematix,
    get_connection,
    natural_key,
    pk,
)
from ematix_flow.clock import Schedule
from ematix_flow.errors import DeclarationError, EmatixError, SourceLocation, UnknownName
from ematix_flow.model import RetryPolicy
from ematix_flow.peers import Placement
from ematix_flow.registry import Broken, Registry, isolated_registry
from ematix_flow.transforms import (
    DeduplicateBy,
    TransformRef,
    deduplicate_by,
    filter_where,
    limit,
    sample_pct,
)

WAREHOUSE = DuckDBConnection(name="warehouse", path="w.duckdb")
LAKE = ObjectStoreLocalConnection(name="lake", path="lake", format="csv")


@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]
    day: Date
    note: Text | None
    changed_at: TimestampTZ


@ematix.table(schema="shop")
class Weighed:
    weight: Double


@ematix.table(schema="shop")
class Versioned:
    order_id: Annotated[BigInt, pk()]
    valid_from: Date


@ematix.table(schema="shop")
class Keyless:
    note: Text


class Base(ManagedTable):
    __abstract__ = True
    order_id: Annotated[BigInt, pk()]


def declared(**options: Any) -> Pipeline:
    """A pipeline over Orders, if the options are right."""
    options = {"target": Orders, "target_connection": "warehouse", **options}

    @ematix.pipeline(**options)
    def load(conn: Any) -> str:
        """Loads orders."""
        return "SELECT 1"

    return load


def refused(**options: Any) -> str:
    """What is said about wrong options, which always comes with the place."""
    with pytest.raises(DeclarationError) as caught:
        declared(**options)
    line = inspect.getsourcelines(declared)[1] + 4
    assert caught.value.where == SourceLocation(__file__, line)
    text = str(caught.value)
    assert text.startswith(f"{__file__}:{line}: pipeline 'load'")
    return text


class TestConnections:
    def test_a_class_body_becomes_a_connection(self) -> None:
        @ematix.connection
        class warehouse:
            kind = "postgres"
            url = "${WAREHOUSE_DSN}"

        assert isinstance(warehouse, PostgresConnection)
        assert warehouse == PostgresConnection(name="warehouse", url="${WAREHOUSE_DSN}")
        assert get_connection("warehouse") is warehouse

    def test_the_url_may_tell_the_kind_and_name_may_rename(self) -> None:
        @ematix.connection
        class anything:
            name = "wh"
            dsn = "duckdb://w.duckdb"

        assert get_connection("wh") == DuckDBConnection(name="wh", url="duckdb://w.duckdb")

    def test_fields_are_inherited(self) -> None:
        class Cluster:
            kind = "kafka"
            bootstrap_servers = "b:9092"

        @ematix.connection
        class events(Cluster):
            group_id: str = "flow"

        assert events == KafkaConnection(name="events", bootstrap_servers="b:9092", group_id="flow")

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            ({}, "connection 'wh' has no kind; add for example kind"),
            ({"kind": "postgres", "hots": "h"}, "has no field 'hots'; did you mean 'host'?"),
            ({"kind": "postgres"}, "needs url= or host="),
            ({"kind": "pg", "url": "x"}, "has unknown kind 'pg'"),
            ({"kind": "postgres", "url": "mysql://h/db"}, "cannot use a URL that starts with mys"),
            ({"url": "x://y"}, "cannot tell the kind of connection from its URL"),
            ({"kind": "postgres", "host": "h", "connect": lambda self: None}, "has no field 'con"),
        ],
    )
    def test_wrong_bodies(self, body: dict[str, Any], says: str) -> None:
        line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
        with pytest.raises(DeclarationError) as caught:
            ematix.connection(type("wh", (), body))
        assert caught.value.where == SourceLocation(__file__, line)
        assert says in str(caught.value)

    def test_it_goes_on_a_class(self) -> None:
        with pytest.raises(DeclarationError, match=r"@ematix\.connection goes on a class"):
            ematix.connection(lambda: None)  # type: ignore[arg-type]


class TestPipelines:
    def test_the_least_there_is(self, registry: Registry) -> None:
        held = declared()
        spec = held.spec
        assert registry.pipelines == {"load": held}
        assert (spec.name, spec.doc, spec.source, held.__doc__) == (
            "load", "Loads orders.", "warehouse", "Loads orders.",
        )  # fmt: skip
        (target,) = spec.targets
        assert (target.table, target.connection, target.mode) == (
            Orders.__table__,
            "warehouse",
            "append",
        )
        assert (spec.retry, spec.depends_on) == (None, {})

    def test_job_is_another_word(self) -> None:
        @ematix.job(target=Orders, target_connection="warehouse")
        def other() -> str:
            return "SELECT 1"

        assert isinstance(other, Pipeline)

    def test_a_schedule_with_all_that_goes_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / ".ematix-flow.toml").write_text(
            '[calendars]\nholidays = ["2026-12-25", 2026-12-26]\n'
        )
        held = declared(
            schedule="0 6 * * MON-FRI",
            timezone="Europe/Berlin",
            jitter=timedelta(minutes=2),
            start_date=date(2026, 12, 1),
            end_date="2026-12-31",
            excluded_days=["holidays", "2026-12-24"],
            catchup="all",
            catchup_limit=7,
        )
        berlin = ZoneInfo("Europe/Berlin")
        assert held.spec.schedule == Schedule(
            "0 6 * * MON-FRI",
            "Europe/Berlin",
            start=datetime(2026, 12, 1, tzinfo=berlin),
            end=datetime.combine(date(2026, 12, 31), time.max, berlin),
            excluded=frozenset(date(2026, 12, day) for day in (24, 25, 26)),
            jitter=timedelta(minutes=2),
            catchup="all",
            catchup_limit=7,
        )

    def test_everything_at_once(self) -> None:
        held = declared(
            source_connection="raw",
            source_table="raw.orders",
            column_map={"order_id": "id"},
            mode="truncate",
            name="nightly",
            schedule="0 2 * * *",
            timezone="Europe/Berlin",
            depends_on=["extract", declared(name="other")],
            upstream_freshness_secs=3600,
            retry={"max_attempts": 5, "backoff_seconds": 30, "backoff_factor": 2.0},
            keys=("order_id",),
            allow_empty=True,
            force_path="spark",
            prefix="orders",
        )
        spec = held.spec
        assert (held.name, spec.source, spec.source_table) == ("nightly", "raw", "raw.orders")
        assert spec.targets[0].column_map == {"order_id": "id"}
        assert spec.schedule == Schedule("0 2 * * *", "Europe/Berlin")
        assert spec.depends_on == {"extract": "success", "other": "success"}
        assert spec.upstream_freshness_secs == 3600
        assert spec.retry == RetryPolicy(max_attempts=5, backoff_seconds=30, backoff_factor=2.0)
        assert spec.options.keys == ("order_id",)
        assert (spec.options.allow_empty, spec.options.force_path) == (True, "spark")
        assert spec.targets[0].prefix == "orders"

    def test_without_a_connection_it_is_default(self) -> None:
        assert declared(target_connection=None).spec.targets[0].connection == "default"

    def test_connections_may_be_given_as_such(self, registry: Registry) -> None:
        spec = declared(target_connection=WAREHOUSE, source_connection=LAKE).spec
        assert (spec.targets[0].connection, spec.source) == ("warehouse", "lake")
        assert registry.connections == {"warehouse": WAREHOUSE, "lake": LAKE}
        declared(target_connection=DuckDBConnection(name="warehouse", path="w.duckdb"))
        other = DuckDBConnection(name="warehouse", path="other.duckdb")
        assert "another of that name is registered" in refused(target_connection=other)
        assert "another of that name is registered" in refused(source_connection=other)

    def test_the_decorator_returns_the_function_it_wraps(self) -> None:
        assert declared().__wrapped__(None) == "SELECT 1"
        assert declared().__name__ == "load"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"targt": Orders}, "has no option 'targt'; did you mean 'target'?"),
    ({"tagret_connection": "x"}, "has no option 'tagret_connection'; did you mean 'target_conn"),
    ({"mode": "upsert"}, "mode='upsert' is not known; known are: append, merge, scd1, scd2, trunc"),
    ({"mode": "apend"}, "mode='apend' is not known; did you mean 'append'?"),
    ({"mode": None}, "mode=None is not known"),
    ({"mode": ["append"]}, "mode=['append'] is not known"),
    ({"target": None}, "exactly one of target= and targets= is needed"),
    ({"targets": [Target(connection="w", table=Orders)]}, "exactly one of target= and targets="),
    ({"target": "orders"}, "target=str is not a declared table; put @ematix.table on the class"),
    ({"target": int}, "target=int is not a declared table"),
    ({"target": Base}, "target=Base is a base for tables, not a table; derive a table from it"),
    ({"target": ManagedTable}, "target=ManagedTable is a base for tables, not a table"),
    ({"target_connection": 5}, "target_connection= takes a connection or its name, not int"),
    ({"target_connection": DuckDBConnection}, "takes a connection or its name, not DuckDBConnect"),
    ({"source_connection": 5}, "source_connection= takes a connection or its name, not int"),
    ({"source_table": ""}, "source_table= must be a text"),
    ({"source_table": 5}, "source_table= must be a text"),
    ({"name": 5}, "name= must be a text, not 5"),
    ({"column_map": {"order_id": "id"}}, "column_map= goes with source_table="),
    ({"column_map": {"oder_id": "id"}, "source_table": "t"}, "column_map names 'oder_id', which"),
    ({"column_map": {"order_id": 5}, "source_table": "t"}, "column_map= must be a dictionary of"),
    ({"column_map": ["order_id"], "source_table": "t"}, "column_map= must be a dictionary of"),
    ({"schedule": "every day"}, "schedule='every day' is not a cron expression; write five fie"),
    ({"schedule": "99 * * * *"}, "schedule='99 * * * *' is not a cron expression"),
    ({"schedule": 5}, "schedule=5 is not a cron expression"),
    ({"schedule": "0 0 31 2 *"}, "schedule='0 0 31 2 *' never fires"),
    ({"schedule": "0 0 * * *", "timezone": "Berlin"}, "timezone='Berlin' does not exist; use an"),
    ({"schedule": "0 0 * * *", "timezone": 5}, "timezone=5 does not exist"),
    ({"timezone": "Europe/Berlin"}, "timezone='Europe/Berlin' goes with schedule="),
    ({"jitter": 5}, "jitter=5 goes with schedule="),
    ({"catchup": "all"}, "catchup='all' goes with schedule="),
    ({"schedule": "@daily", "jitter": float("inf")}, "jitter=inf must be a timedelta or a number"),
    ({"schedule": "@daily", "catchup_limit": 5}, "catchup_limit=5 goes with catchup='all'"),
    ({"schedule": "@daily", "jitter": -1}, "jitter=-1 must be a timedelta or a number of seconds"),
    ({"schedule": "@daily", "catchup": "lst"}, "catchup='lst' is no policy; did you mean 'last'?"),
    ({"schedule": "@daily", "catchup_limit": 0}, "catchup_limit must be a whole number from 1"),
    ({"schedule": "@daily", "start_date": "soon"}, "start_date='soon' is no moment; write a date"),
    (
        {"schedule": "@daily", "start_date": "2026-02-01", "end_date": "2026-01-31"},
        "end_date='2026-01-31' is before start_date='2026-02-01'",
    ),
    ({"schedule": "@daily", "excluded_days": [5]}, "excluded_days holds 5, which is no day"),
    ({"schedule": "@daily", "excluded_days": "hols"}, "there is no calendar 'hols'; write it into"),
    ({"depends_on": "extract"}, "depends_on= must be a list of pipelines, not 'extract'; write d"),
    ({"depends_on": [5]}, "depends_on= takes pipelines or their names, not int"),
    ({"depends_on": [("a", "done")]}, "depends_on= cannot wait for 'done'; known are"),
    ({"depends_on": [("a", "failed", 1)]}, "depends_on= has an entry of 3 parts"),
    ({"depends_on": ["a", ("a", "failed")]}, "depends_on= names 'a' with two conditions"),
    ({"freshness_sla": "soon"}, "freshness_sla= must be a time above 0, not 'soon'; write seconds"),
    ({"freshness_sla": True}, "freshness_sla= must be a time above 0, not True"),
    ({"freshness_column": "day"}, "freshness_column= goes with freshness_sla="),
    (
        {"freshness_sla": "6h", "freshness_column": "dai"},
        "freshness_column='dai' is not a column of the target; did you mean 'day'?",
    ),
    ({"tags": "heavy"}, "tags= must be a list of texts, not 'heavy'"),
    ({"retry": {"backoff": "quick"}}, "retry['backoff'] cannot be 'quick'; use one of fixed"),
    (
        {"retry": {"backoff": "linear", "backoff_factor": 2}},
        "retry['backoff_factor'] does not go with retry['backoff']='linear'",
    ),
    (
        {"retry": {"base_secs": 1, "backoff_seconds": 2}},
        "retry has both 'backoff_seconds' and another spelling of it",
    ),
    ({"retry": {"jitter": 3}}, "retry['jitter'] must be from 0 to 1, not 3"),
    ({"retry": {"retry_on": 5}}, "retry['retry_on'] must be a list of error classes, not 5"),
    ({"retry": {"retry_on": ["Transitn"]}}, "retry['retry_on'] names 'Transitn', which is no err"),
    ({"retry": 3}, "retry= must be a dictionary, not 3"),
    ({"retry": {"max_attempt": 3}}, "retry has no key 'max_attempt'; did you mean 'max_attempts'"),
    ({"retry": {"max_attempts": 0}}, "retry['max_attempts'] must be a whole number from 1 upwards"),
    ({"retry": {"max_attempts": 1.5}}, "retry['max_attempts'] must be a whole number from 1 upw"),
    ({"retry": {"backoff_seconds": -1}}, "retry['backoff_seconds'] must be a number from 0 upwa"),
    ({"retry": {"backoff_factor": "2"}}, "retry['backoff_factor'] must be a number from 0 upward"),
    ({"retry": {"max_attempts": True}}, "retry['max_attempts'] must be a number from 0 upwards"),
    ({"upstream_freshness_secs": 0}, "upstream_freshness_secs= must be a time above 0, not 0"),
    ({"upstream_freshness_secs": "1h"}, "upstream_freshness_secs= must be a time above 0"),
    ({"keys": "order_id"}, "keys= must be a list of column names, not 'order_id'; write keys=(\"o"),
    ({"keys": 5}, "keys= must be a list of column names, not 5"),
    ({"keys": ["order_id", 5]}, "keys= must be a list of column names"),
    ({"keys": ["order"]}, "keys= names 'order', which is not a column of shop.orders; did you m"),
    ({"keys": [], "mode": "merge"}, "keys= is an empty list; name at least one column, or remov"),
    ({"keys": ["order_id", "order_id"]}, "keys= names 'order_id' twice; name it once"),
    ({"mode": "merge", "compare_columns": ()}, "compare_columns= is an empty list"),
    (
        {"mode": "merge", "compare_columns": ["order_id"]},
        "compare_columns= names 'order_id', which is part of the key and never changes",
    ),
    (
        {"mode": "merge", "keys": ["day"], "update_columns": ["note", "day"]},
        "update_columns= names 'day', which is part of the key and never changes",
    ),
    ({"mode": "scd2", "target": Versioned}, "declares column 'valid_from', which mode=\"scd2\" ad"),
    ({"mode": "merge", "update_columns": ["x"]}, "update_columns= names 'x', which is not a col"),
    ({"mode": "merge", "compare_columns": ["x"]}, "compare_columns= names 'x', which is not a c"),
    ({"update_columns": ["note"]}, 'update_columns= does not go with mode="append"; use mode='),
    ({"compare_columns": ["note"], "mode": "truncate"}, "compare_columns= does not go with mode="),
    ({"handle_deletes": "hard"}, 'handle_deletes= does not go with mode="append"'),
    ({"handle_deletes": "maybe", "mode": "merge"}, "handle_deletes='maybe' is not known; use one"),
    ({"delete_when": "op = 'D'"}, 'delete_when= does not go with mode="append"'),
    ({"delete_when": 5, "mode": "merge"}, "delete_when= must be a text, not 5"),
    ({"event_timestamp_column": "changed_at"}, "event_timestamp_column= does not go with mode="),
    ({"event_timestamp_column": "at", "mode": "scd2"}, "event_timestamp_column= names 'at', which"),
    ({"ttl": timedelta(1)}, 'ttl= does not go with mode="append"; use mode="scd2"'),
    ({"ttl_seconds": 5}, 'ttl_seconds= does not go with mode="append"'),
    ({"ttl": 5, "mode": "scd2"}, "ttl= must be a timedelta, not 5"),
    ({"ttl": timedelta(0), "mode": "scd2"}, "ttl= must be a time above 0"),
    ({"ttl_seconds": -1, "mode": "scd2"}, "ttl_seconds= must be a time above 0, not -1"),
    ({"ttl": timedelta(1), "ttl_seconds": 5, "mode": "scd2"}, "both ttl= and ttl_seconds= are g"),
    ({"lookback": "1h"}, "lookback= must be a time above 0, not '1h'"),
    ({"lookback": True}, "lookback= must be a time above 0, not True"),
    (
        {"incremental": True, "watermark_column": "order_id", "lookback": timedelta(1)},
        "lookback= is a time span, but watermark column 'order_id' is a BigInt; give it as a num",
    ),
    (
        {"incremental": True, "watermark_column": "changed_at", "lookback": 5},
        "lookback= is a number, but watermark column 'changed_at' is a TimestampTZ; give it as a t",
    ),
    (
        {"incremental_column": "day", "lookback": 5},
        "lookback= is a number, but watermark column 'day' is a Date",
    ),
    (
        {"incremental_column": "note", "lookback": 5},
        "lookback= does not go with watermark column 'note', which is a Text",
    ),
    (
        {"incremental_column": "weight", "target": Weighed},
        "watermark column 'weight' is a Double, which cannot be one; use a whole number",
    ),
    ({"watermark_column": "day"}, "watermark_column= goes with incremental=True; add incremen"),
    ({"incremental": True}, "incremental=True needs watermark_column="),
    ({"incremental": "yes"}, "incremental= must be True or False, not 'yes'"),
    ({"incremental": True, "watermark_column": "at"}, "watermark_column= names 'at', which is not"),
    (
        {"incremental": True, "watermark_column": "day", "mode": "truncate"},
        'incremental=True and mode="truncate" contradict each other',
    ),
    (
        {"watermark_column": "day", "incremental_column": "day"},
        "both watermark_column= and incremental_column= are given",
    ),
    ({"null_watermark": "skip"}, "null_watermark='skip' is not known; use one of 'error', 'load'"),
    ({"duplicate_keys": "any"}, "duplicate_keys='any' is not known; use one of 'error', 'first'"),
    ({"on_drift": "ignore"}, "on_drift='ignore' is not known; use one of 'error', 'warn', 'evolve"),
    ({"on_drift": ["error"]}, "on_drift=['error'] is not known"),
    ({"allow": "drop"}, "allow= must be a list of column names, not 'drop'"),
    ({"allow_empty": True}, 'allow_empty=True does not go with mode="append"; it is for mode="tr'),
    ({"force_path": "fast"}, "force_path='fast' is not known; use one of None, 'same_db', 'spark'"),
    ({"max_delete_fraction": 2}, "max_delete_fraction must be from 0 to 1, not 2"),
    ({"max_delete_fraction": "all"}, "max_delete_fraction must be from 0 to 1, not 'all'"),
    ({"soft_delete_column": ""}, "soft_delete_column= must be a text, not ''"),
    ({"order_by": 5}, "order_by= must be a text, not 5"),
    ({"transform_sql": 5}, "transform_sql= must be a text, not 5"),
    ({"prefix": 5}, "prefix= must be a text, not 5"),
    ({"transforms_pre": "x"}, "transforms_pre= must be a list, not 'x'"),
    ({"transforms_pre": ["x"]}, "transforms_pre= cannot hold 'x'; use what ematix_flow.transforms"),
    ({"transforms_post": "x"}, "transforms_post= must be a list, not 'x'"),
    ({"transforms_post": [5]}, "transforms_post= cannot hold int; use SQL, a function, or"),
    ({"continue_on_failure_post": 1}, "continue_on_failure_post= must be True or False, not 1"),
    ({"continue_on_target_failure": 1}, "continue_on_target_failure= must be True or False, not 1"),
    ({"engine": "fast"}, "engine='fast' is not known; use one of 'auto', 'local'"),
    ({"peers": "http://a:1"}, "peers= must be a list, not 'http://a:1'"),
    ({"peers": ["https://a:99999"]}, "peers= cannot hold 'https://a:99999'"),
    ({"peers": ["k8s://a.b.c:1"]}, "peers= cannot hold 'k8s://a.b.c:1'"),
    ({"peers": [5]}, "peers= cannot hold int"),
    ({"peers": ["dns://a:1"], "master": "yarn"}, "both peers= and master= are given"),
    ({"peers": ["dns://a:1"], "engine": "local"}, "peers= does not go with engine='local'"),
    ({"master": "spark://"}, "master= is not the address of a cluster"),
    ({"master": "spark://a"}, "master='spark://a' does not say at which port; write"),
    ({"master": "http://a:1"}, "master= is not the address of a cluster"),
    ({"peers": ["a:1"]}, "peers= cannot hold 'a:1'"),
    ({"master": 5}, "master= must be a text, not 5"),
    ({"mode": "merge", "target": Keyless}, 'mode="merge" needs a key, and shop.keyless has none'),
    ({"target": None, "targets": []}, "targets= must be a list of at least one Target"),
    ({"target": None, "targets": Orders}, "targets= must be a list of at least one Target"),
    ({"target": None, "targets": [Orders]}, "targets= takes Target(…) entries, not type"),
    ({"target": None, "targets": [Target(connection="w")]}, "Target needs table= with a declared"),
    (
        {"target": None, "targets": [Target(connection="w", table=("shop", "orders"))]},
        "a batch pipeline's Target needs table= with a declared table",
    ),
    (
        {"target": None, "targets": [Target(connection="w", table=Orders, mode="upsert")]},
        "mode='upsert' is not known",
    ),
    (
        {"target": None, "targets": [Target(connection="w", table=Orders, keys=["x"])]},
        "keys= names 'x', which is not a column of shop.orders",
    ),
    (
        {"target": None, "targets": [Target(connection=5, table=Orders)]},  # type: ignore[arg-type]
        "connection= takes a connection or its name, not int",
    ),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=lambda v: str(v)[:60])
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    assert says in refused(**options)


def test_every_option_has_a_wrong_value_above() -> None:
    tried = {name for options, _ in WRONG for name in options}
    missing = set(inspect.signature(ematix.pipeline).parameters) - tried - {"unknown"}
    assert missing == set()


PLACES: list[tuple[dict[str, Any], Placement]] = [
    ({}, Placement()),
    ({"engine": "local"}, Placement("local")),
    (
        {"engine": "distributed", "peers": ["dns://a:1"]},
        Placement("distributed", peers=("dns://a:1",)),
    ),
    ({"peers": ("http://a:1", "k8s://a.b:1")}, Placement(peers=("http://a:1", "k8s://a.b:1"))),
    ({"master": "spark://m:7077"}, Placement(master="spark://m:7077")),
    ({"master": "yarn"}, Placement(master="yarn")),
]


@pytest.mark.parametrize(("options", "placement"), PLACES, ids=lambda v: str(v)[:60])
def test_where_it_runs(options: dict[str, Any], placement: Placement) -> None:
    spec = declared(**options).spec
    assert spec.placement == placement


class TestFunctions:
    @pytest.mark.parametrize(
        ("function", "says"),
        [
            (lambda a, b: None, "its function has a parameter 'a' that nothing can be put into"),
            (lambda conn, other: None, "its function has a parameter 'other' that nothing can be"),
            (lambda *args: None, "its function has a parameter 'args' that nothing can be put"),
            (lambda **more: None, "its function has a parameter 'more' that nothing can be put"),
            (int, "@ematix.pipeline goes on a function"),
            ("SELECT 1", "@ematix.pipeline goes on a function"),
        ],
    )
    def test_what_cannot_be_called(self, function: Any, says: str) -> None:
        with pytest.raises(DeclarationError) as caught:
            ematix.pipeline(target=Orders, name="load")(function)
        assert says in str(caught.value)
        assert caught.value.where is not None

    def test_a_pipeline_is_not_decorated_twice(self) -> None:
        with pytest.raises(DeclarationError, match=r"@ematix\.pipeline goes on a function"):
            ematix.pipeline(target=Orders, name="other")(declared())


class TestKeys:
    def table(self, **settings: Any) -> Any:
        body = {
            "__annotations__": {
                "id": Annotated[BigInt, pk()],
                "code": settings.pop("code", Text),
            },
            **settings,
        }
        return type("Held", (ManagedTable,), body)

    def declare(self, table: Any, **options: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            declared(target=table, mode="merge", **options)
        return [str(w.message) for w in caught if w.category is UserWarning]

    def test_the_primary_key_is_taken_in_silence(self) -> None:
        assert self.declare(self.table()) == []
        assert self.declare(self.table(__merge_keys__=("id",))) == []

    def test_another_key_is_announced(self) -> None:
        (told,) = self.declare(self.table(__merge_keys__=("code",)))
        assert told.startswith("held is merged on code (__merge_keys__), not on its primary key id")
        (told,) = self.declare(self.table(code=Annotated[Text, natural_key()]))
        assert told.startswith("held is merged on code (natural_key()), not on its primary key id")

    def test_an_explicit_key_silences_it(self) -> None:
        assert self.declare(self.table(__merge_keys__=("code",)), keys=["code"]) == []

    def test_the_warning_points_at_the_pipeline(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            held = declared(target=self.table(__merge_keys__=("code",)), mode="scd2")
        assert (caught[0].filename, caught[0].lineno) == (
            held.spec.location.file,
            held.spec.location.line,
        )


class TestTargets:
    def test_misspelt_options(self) -> None:
        line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
        with pytest.raises(UnknownName) as caught:
            Target(connection="w", tabel=Orders)  # type: ignore[call-arg]
        assert str(caught.value) == (
            f"{__file__}:{line}: Target has no option 'tabel'; did you mean 'table'?"
        )

    def test_options_of_another_format(self) -> None:
        with pytest.raises(EmatixError, match="parquet_compression is an option of parquet files"):
            Target(connection=LAKE, table=Orders, parquet_compression="zstd")
        Target(connection=LAKE, table=Orders, csv_delimiter=";", csv_header=False)

    def test_file_options_on_a_database(self) -> None:
        with pytest.raises(DeclarationError) as caught:
            Target(connection=WAREHOUSE, table=Orders, csv_header=True)
        assert caught.value.what == (
            "csv_header is an option of files, and connection 'warehouse' is of kind 'duckdb'"
        )

    def test_options_arrive(self) -> None:
        entries = [
            Target(connection=LAKE, table=Orders, prefix="o", csv_delimiter=";", mode="truncate"),
            Target(connection="w", table=Orders),
        ]
        first, second = declared(target=None, targets=entries).spec.targets
        assert (first.connection, first.mode, first.prefix) == ("lake", "truncate", "o")
        assert first.files.set_fields() == {"csv_delimiter": ";"}
        assert (second.connection, second.mode, second.prefix) == ("w", "append", None)


class TestTransforms:
    def test_they_are_values(self) -> None:
        wanted = DeduplicateBy(("a", "b"), "c desc")
        assert deduplicate_by("a", "b", order_by="c desc") == wanted
        assert deduplicate_by(keys=["a", "b"], order_by="c desc") == wanted
        assert filter_where("a > 1").condition == "a > 1"
        assert (limit(5).rows, sample_pct(0.5).percent) == (5, 0.5)
        assert ematix.transform_ref("x") == TransformRef("x")

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (deduplicate_by, "deduplicate_by() takes the key columns"),
            (lambda: deduplicate_by("a", keys=["a"]), "deduplicate_by() takes the key columns"),
            (lambda: deduplicate_by(keys="a"), "deduplicate_by() takes the key columns"),
            (lambda: deduplicate_by(5), "a key must be a text, not 5"),
            (lambda: deduplicate_by("a", order_by=5), "order_by must be a text, not 5"),
            (lambda: filter_where(""), "filter_where(): the condition must be a text, not ''"),
            (lambda: limit(0), "limit() takes a whole number from 1 upwards, not 0"),
            (lambda: limit(True), "limit() takes a whole number"),
            (lambda: sample_pct(0), "sample_pct() takes a number above 0 and up to 100, not 0"),
            (lambda: sample_pct(101), "sample_pct() takes a number above 0 and up to 100"),
            (lambda: sample_pct("5"), "sample_pct() takes a number, not '5'"),
            (lambda: ematix.transform_ref(5), "transform_ref(): the name must be a text, not 5"),
        ],
    )
    def test_wrong_ones(self, make: Any, says: str) -> None:
        with pytest.raises(DeclarationError, match=re.escape(says)):
            make()


def test_what_stands_on_a_broken_part_is_broken_without_a_second_report() -> None:
    with isolated_registry(collecting=True) as registry:

        @ematix.connection
        class broken_wh:
            kind = "postgers"

        class BadTable(ManagedTable):
            a: int  # type: ignore[assignment]

        held = [
            declared(name="a", target_connection=broken_wh),
            declared(name="b", source_connection=broken_wh),
            declared(name="c", target=BadTable),
            declared(name="d", target=None, targets=[Target(connection=broken_wh, table=Orders)]),
            declared(name="e", target=None, targets=[Target(connection="w", table=BadTable)]),
        ]
        declared(name="good", depends_on=[held[0]])
    assert all(isinstance(h, Broken) for h in held)
    assert len(registry.errors) == 2
    assert list(registry.pipelines) == ["good"]
    for name in "abcde":
        with pytest.raises(DeclarationError):
            registry.pipeline(name)
