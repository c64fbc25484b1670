"""The documented declarations: connections, tables, files, and where names are looked up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ematix_flow
from ematix_flow import config, get_connection
from ematix_flow.config import connection_names, resolve_connection
from ematix_flow.errors import EmatixError
from ematix_flow.redaction import MASK

from .preambles import CUSTOMER_DIM, EVENTS, IMPORTS, KAFKA, WAREHOUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Database, Said, Snippet

SECRET = "hunter22-Zx"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "KAFKA_BOOTSTRAP": "localhost:9092",
        "KAFKA_USER": "me",
        "KAFKA_PASS": SECRET,
        "SR_URL": "http://localhost:8081",
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "WAREHOUSE_DSN": f"postgres://me:{SECRET}@localhost/wh",
    }.items():
        monkeypatch.setenv(name, value)


IN_CODE = """
from ematix_flow import (
    ematix,
    PostgresConnection,
    KafkaConnection,
    SchemaRegistryConnection,
    register_connection,
)

@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_DSN}"

@ematix.connection
class kafka_prod:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    group_id = "ematix-flow"
    sasl_plain_username = "${KAFKA_USER}"
    sasl_plain_password = "${KAFKA_PASS}"

@ematix.connection
class sr_prod:
    kind = "schema_registry"
    url = "${SR_URL}"

warehouse_2 = register_connection(
    PostgresConnection(name="warehouse_2", url="postgres://localhost/wh"),
)
"""

BY_INSTANCE = """
from ematix_flow import PostgresConnection, register_connection

warehouse = register_connection(
    PostgresConnection(name="warehouse", url="postgres://localhost/wh"),
)
"""

AVRO = """
@ematix.connection
class sr_prod:
    kind = "schema_registry"
    url = "${SR_URL}"

@ematix.connection
class kafka_avro:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    payload_format = "avro"
    schema_registry = "sr_prod"
"""

LAKE_CLASS = """
from ematix_flow import Target, ObjectStoreS3Connection

@ematix.connection
class lake:
    kind = "object_store_s3"
    endpoint = "https://s3.amazonaws.com"
    bucket = "ematix-archive"
    region = "us-east-1"
    access_key_id = "${AWS_ACCESS_KEY_ID}"
    secret_access_key = "${AWS_SECRET_ACCESS_KEY}"
    format = "parquet"

targets=[
    Target(connection=warehouse, table=("public", "events")),
    Target(connection=lake, prefix="events/raw", parquet_compression="zstd"),
]
"""

LAKE_INSTANCE = """
from ematix_flow import ObjectStoreS3Connection, Target

lake = ObjectStoreS3Connection(
    name="lake",
    endpoint="https://s3.amazonaws.com",
    bucket="ematix-archive",
    region="us-east-1",
    access_key_id="${AWS_ACCESS_KEY_ID}",
    secret_access_key="${AWS_SECRET_ACCESS_KEY}",
    format="parquet",
)
target = Target(
    connection=lake,
    prefix="events/raw",
    parquet_compression="zstd",
)
"""

CSV_LAKE = """
from ematix_flow import ObjectStoreLocalConnection, Target

lake = ObjectStoreLocalConnection(name="lake", path="lake", format="csv")
"""

WRITE_OPTIONS = """
held = Target(
    connection=lake,
    prefix="events/csv",
    csv_delimiter=";",
    csv_header=False,
    csv_quote="'",
    csv_escape="\\\\",
    csv_null_value="\\\\N",
)
"""

READ_OPTIONS = """
held = Target(
    connection=lake,
    prefix="events/csv",
    csv_read_options={
        "has_header": True,
        "delimiter": ",",
        "quote": '"',
        "escape": "\\\\",
        "comment": "#",
        "null_regex": r"^(NA|NULL|\\\\N)$",
        "truncated_rows_ok": False,
        "schema_infer_max_records": 4096,
    },
    json_read_options={
        "schema_infer_max_records": 4096,
        "batch_size": 8192,
    },
)
"""


def test_connections_in_code(my_pipelines: Snippet) -> None:
    module = my_pipelines(IN_CODE)
    assert isinstance(module.warehouse, ematix_flow.PostgresConnection)
    assert isinstance(module.kafka_prod, ematix_flow.KafkaConnection)
    assert isinstance(module.sr_prod, ematix_flow.SchemaRegistryConnection)
    for name in ("warehouse", "kafka_prod", "sr_prod", "warehouse_2"):
        assert get_connection(name) is getattr(module, name)
        assert resolve_connection(name).origin == "declared in Python"
    assert module.kafka_prod.resolved().fields()["sasl_plain_password"] == SECRET
    for name in ("warehouse", "kafka_prod"):
        held = getattr(module, name)
        assert SECRET not in repr(held)
        assert SECRET not in repr(held.resolved())
        assert MASK in repr(held.resolved())


def test_a_connection_by_instance(my_pipelines: Snippet) -> None:
    assert my_pipelines(BY_INSTANCE).warehouse is get_connection("warehouse")


def test_values_are_taken_at_use_time(
    my_pipelines: Snippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = my_pipelines("from ematix_flow import ematix", WAREHOUSE).warehouse
    monkeypatch.setenv("WAREHOUSE_DSN", "postgres://elsewhere/wh")
    assert warehouse.resolved().address()["host"] == "elsewhere"


def test_a_registry_by_name_and_by_instance(my_pipelines: Snippet) -> None:
    module = my_pipelines("from ematix_flow import ematix, KafkaConnection", AVRO)
    assert module.kafka_avro.schema_registry == "sr_prod"
    for option in (
        {"schema_registry": module.sr_prod},
        {"schema_registry_url": "http://localhost:8081"},
    ):
        held = module.KafkaConnection(name="k", bootstrap_servers="localhost:9092", **option)
        assert option.items() <= held.fields().items()


def test_every_documented_class_of_connection() -> None:
    for name in (
        "KafkaConnection", "RabbitMQConnection", "PubSubConnection", "KinesisConnection",
        "SchemaRegistryConnection", "PostgresConnection", "MySQLConnection", "SQLiteConnection",
        "DuckDBConnection", "DeltaLocalConnection", "DeltaS3Connection",
        "ObjectStoreLocalConnection", "ObjectStoreS3Connection",
    ):  # fmt: skip
        assert issubclass(getattr(ematix_flow, name), ematix_flow.Connection)


def test_object_stores(my_pipelines: Snippet) -> None:
    by_class = my_pipelines("from ematix_flow import ematix", WAREHOUSE, LAKE_CLASS)
    by_instance = my_pipelines(LAKE_INSTANCE)
    assert by_class.lake == by_instance.lake
    assert by_class.targets[1] == by_instance.target
    assert SECRET not in repr(by_instance.lake.resolved())
    assert by_instance.lake.resolved().secret_access_key == SECRET


def test_write_options(my_pipelines: Snippet) -> None:
    held = my_pipelines(CSV_LAKE, WRITE_OPTIONS).held
    assert held.file_options().set_fields() == {
        "csv_delimiter": ";", "csv_header": False, "csv_quote": "'", "csv_escape": "\\",
        "csv_null_value": "\\N",
    }  # fmt: skip


def test_read_options(my_pipelines: Snippet) -> None:
    held = my_pipelines(CSV_LAKE, READ_OPTIONS).held
    assert held.csv_read_options["null_regex"] == r"^(NA|NULL|\\N)$"
    assert held.json_read_options == {"schema_infer_max_records": 4096, "batch_size": 8192}


@pytest.mark.parametrize(
    ("format", "option"),
    [("csv", 'parquet_compression="zstd"'), ("parquet", 'csv_read_options={"has_header": True}')],
)
def test_options_that_do_not_fit_are_caught_early(
    my_pipelines: Snippet, format: str, option: str
) -> None:
    with pytest.raises(EmatixError, match="is an option of"):
        my_pipelines(
            CSV_LAKE.replace("csv", format), f'Target(connection=lake, prefix="x", {option})'
        )


def test_formats_by_path(my_pipelines: Snippet) -> None:
    module = my_pipelines(
        """
from ematix_flow.connections import format_from_path

found = [
format_from_path("s3://bucket/year=2026/events.csv.gz"),
format_from_path("logs.ndjson"),
format_from_path("data.parquet"),
]
"""
    )
    assert module.found == ["csv", "json_lines", "parquet"]


def test_tables(my_pipelines: Snippet) -> None:
    module = my_pipelines(IMPORTS, CUSTOMER_DIM, EVENTS)
    table = module.CustomerDim.__table__
    assert str(table.name) == "analytics.customer_dim"
    assert table.primary_key == ("customer_id",)
    assert [(c.name, c.nullable, len(c.normalizers)) for c in table.columns] == [
        ("customer_id", False, 0),
        ("email", True, 3),
        ("name", True, 0),
        ("updated_at", False, 1),
    ]
    assert str(module.Events.__table__.name) == "analytics.events"


def test_a_table_of_another_name(my_pipelines: Snippet) -> None:
    module = my_pipelines(
        IMPORTS,
        CUSTOMER_DIM.replace(
            '@ematix.table(schema="analytics")', '@ematix.table(schema="analytics", name="dim")'
        ),
    )
    assert str(module.CustomerDim.__table__.name) == "analytics.dim"


def test_markers_of_normalization_are_importable(my_pipelines: Snippet) -> None:
    module = my_pipelines(
        "from ematix_flow.normalize import (lower, trim, empty_to_null, parse_timestamp, "
        "parse_int, regex_replace, default, derive, sql)\n"
        "held = [lower(), trim(), empty_to_null(), parse_timestamp(), parse_int(), "
        "regex_replace('a', 'b'), default(1), derive('a + b'), sql('upper(col)')]"
    )
    from ematix_flow.normalize import is_normalizer

    assert all(map(is_normalizer, module.held))


class TestLookup:
    """Where a name is looked up, from the documented files and variables."""

    def test_the_project_file(
        self,
        database: Database,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        flow: Callable[[str], Said],
    ) -> None:
        user, _, rest = database.without_scheme.partition(":")
        password, _, place = rest.rpartition("@")
        monkeypatch.setenv("RAW_DB_PASSWORD", password)
        monkeypatch.setenv("WAREHOUSE_DSN", database.without_scheme)
        (folder / ".ematix-flow.toml").write_text(
            f"""
[connections.raw_db]
url = "postgres://{user}:${{RAW_DB_PASSWORD}}@{place}"

[connections.warehouse]
url = "postgres://${{WAREHOUSE_DSN}}"
"""
        )
        for name in ("raw_db", "warehouse"):
            with config.connect(name) as live:
                live.ping()
        said = flow("flow connections list")
        assert "raw_db" in said.out
        said = flow("flow connections check warehouse")
        assert said.out.startswith("warehouse: ok")
        assert password not in said.out + said.err

    def test_the_users_file(self, private_home: Path) -> None:
        (private_home / "connections.toml").write_text(
            """
[connections.warehouse]
url = "postgres://user:${WAREHOUSE_PASSWORD}@host/wh"

[connections.kafka_prod]
kind = "kafka"
bootstrap_servers = "${KAFKA_BOOTSTRAP}"
group_id = "ematix-flow"
"""
        )
        assert connection_names() == ["kafka_prod", "warehouse"]
        held = resolve_connection("kafka_prod").connection.resolved()
        assert held.fields()["bootstrap_servers"] == "localhost:9092"

    def test_variables(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_DSN_RAW_DB", database.url)
        monkeypatch.setenv("EMATIX_FLOW_DSN", database.url)
        for name in ("raw_db", "default"):
            with config.connect(name) as live:
                assert live.query("SELECT count(*) AS n FROM raw.events") == [{"n": 3}]

    def test_an_inline_url(self, database: Database) -> None:
        with config.connect(url=database.url) as live:
            live.ping()
            shown = str(live.info())
        assert database.url.partition("@")[0].rpartition(":")[2] not in shown


def test_a_snippet_imported_twice_declares_the_same(my_pipelines: Snippet) -> None:
    head = "from ematix_flow import ematix"
    assert my_pipelines(head, KAFKA).kafka_prod == my_pipelines(head, KAFKA).kafka_prod
