"""A user's project under ``mypy --strict``: every public name, used as the documentation does.

Each ``type: ignore`` marks a mistake the checker must catch; one it no longer catches is reported
as unused.
"""

from __future__ import annotations

from typing_extensions import assert_type

import ematix_flow
from ematix_flow import (
    JSON,
    JSONB,
    UUID,
    Annotated,
    Array,
    BigInt,
    BigQueryConnection,
    Boolean,
    Bytes,
    Column,
    Connection,
    Date,
    DeltaLocalConnection,
    DeltaS3Connection,
    Double,
    DuckDBConnection,
    EmatixError,
    Float,
    GlueSchemaRegistryConnection,
    Integer,
    KafkaConnection,
    KinesisConnection,
    ManagedTable,
    MySQLConnection,
    Numeric,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    Pipeline,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SmallInt,
    SnowflakeConnection,
    SQLiteConnection,
    String,
    Target,
    Text,
    Time,
    Timestamp,
    TimestampTZ,
    config,
    connect,
    connections,
    ematix,
    get_connection,
    natural_key,
    nullable,
    pk,
    register_connection,
    registered_connections,
    renamed_from,
)

assert_type(ematix_flow.__version__, str)


class Events(ManagedTable):
    __schema__ = "raw"
    __tablename__ = "events"
    __merge_keys__ = ("event_id",)
    __unique_constraints__ = (("event_id", "kind"),)

    event_id: Annotated[BigInt, pk()]
    kind: Annotated[String[32], natural_key("business")]
    amount: Numeric[12, 2] | None
    note: Annotated[Text, nullable()]
    small: SmallInt
    whole: Integer
    single: Float
    double: Double
    flag: Boolean
    day: Date
    at: Time
    local: Timestamp
    instant: TimestampTZ
    document: JSON
    binary_document: JSONB
    key: UUID
    raw: Annotated[Bytes, renamed_from("payload")]
    tags: Array[Text]
    codes: Array[String[8]]


@ematix.table(schema="mart", name="daily")
class Daily:
    day: Annotated[Date, pk()]
    total: Numeric[18, 2]


class Assigned(ManagedTable):
    __schema__ = "mart"

    number = Column(BigInt(), primary_key=True)


@ematix.connection
class lake:
    kind = "object_store_local"
    path = "data"


declared: list[Connection] = [
    BigQueryConnection(name="a", project="p"),
    DeltaLocalConnection(name="b", path="d"),
    DeltaS3Connection(name="c", bucket="b"),
    DuckDBConnection(name="d", path="d.duckdb"),
    GlueSchemaRegistryConnection(name="e", registry_name="r"),
    KafkaConnection(name="f", bootstrap_servers="localhost:9092"),
    KinesisConnection(name="g", stream_name="s"),
    MySQLConnection(name="h", url="mysql://localhost/db"),
    ObjectStoreLocalConnection(name="i", path="data", format="csv"),
    ObjectStoreS3Connection(name="j", bucket="b"),
    PostgresConnection(name="k", host="localhost", password="${PGPASSWORD}"),
    PubSubConnection(name="l", project_id="p"),
    RabbitMQConnection(name="m", amqp_url="amqp://localhost"),
    RedshiftConnection(name="n", url="redshift://localhost/db"),
    SQLiteConnection(name="o", path="o.db"),
    SchemaRegistryConnection(name="p", url="http://localhost:8081"),
    SnowflakeConnection(name="q", account="a", user="u"),
]
assert_type(register_connection(declared[0]), Connection)
assert_type(get_connection("a"), Connection)
assert_type(registered_connections(), "dict[str, Connection]")


@ematix.pipeline(
    target=Events,
    target_connection="k",
    source_connection=declared[3],
    mode="truncate",
    schedule="0 * * * *",
    retry={"max_attempts": 3},
)
def load_events(conn: object) -> str:
    return "SELECT * FROM events"


@ematix.job(targets=[Target(connection="d", table=Events, mode="append")], depends_on=[load_events])
def copy_events() -> str:
    return "SELECT * FROM events"


assert_type(load_events, Pipeline)
assert_type(load_events.name, str)


def run() -> None:
    """Runs nothing here: only its types matter."""
    try:
        result = load_events.sync(keys=["event_id"])
        again: type[object] = type(load_events(mode="append"))
        print(result, again, load_events.preview(), load_events.dry_run(), load_events.validate())
    except EmatixError as error:
        assert_type(error.fix, str)
    live = config.connect(url="duckdb:///tmp.duckdb")
    print(live.ping(), connect("k"), connections.PostgresConnection)


pk("order_id")  # type: ignore[call-arg]
DuckDBConnection(name="x", file="typo.duckdb")  # type: ignore[call-arg]
register_connection("warehouse")  # type: ignore[arg-type]
ematix.pipeline(target=Events, tagret_connection="k")  # type: ignore[arg-type]
ematix.pipeline(target=Events, mode=3)  # type: ignore[arg-type]
print(ematix_flow.no_such_name)  # type: ignore[attr-defined]
