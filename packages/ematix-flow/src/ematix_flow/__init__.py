"""Declarative data pipelines in Python, on Apache Spark.

Declare connections, tables and pipelines with the decorators in ``ematix``; run them with
``.sync()`` or the ``flow`` command. Importing this package starts nothing and loads no driver.
"""

from typing import TYPE_CHECKING, Annotated

from ematix_flow import config, connections, ematix
from ematix_flow.config import connect
from ematix_flow.connections import (
    BigQueryConnection,
    Connection,
    DeltaLocalConnection,
    DeltaS3Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
)
from ematix_flow.errors import EmatixError
from ematix_flow.markers import natural_key, nullable, pk, renamed_from
from ematix_flow.model import Column
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import get_connection, register_connection, registered_connections
from ematix_flow.table import ManagedTable
from ematix_flow.target import Target
from ematix_flow.types import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    Integer,
    SmallInt,
    Text,
    Time,
    Timestamp,
    TimestampTZ,
)

if TYPE_CHECKING:
    # Type checkers know no types with numbers for parameters; these stand in for the real ones
    # so that String[256], Numeric[12, 2] and Array[Text] pass in annotations.
    from builtins import list as Array
    from typing import Literal as Numeric
    from typing import Literal as String
else:
    from ematix_flow.types import Array, Numeric, String

__version__ = "0.1.0"

__all__ = [
    "JSON",
    "JSONB",
    "UUID",
    "Annotated",
    "Array",
    "BigInt",
    "BigQueryConnection",
    "Boolean",
    "Bytes",
    "Column",
    "Connection",
    "Date",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "Double",
    "DuckDBConnection",
    "EmatixError",
    "Float",
    "GlueSchemaRegistryConnection",
    "Integer",
    "KafkaConnection",
    "KinesisConnection",
    "ManagedTable",
    "MySQLConnection",
    "Numeric",
    "ObjectStoreLocalConnection",
    "ObjectStoreS3Connection",
    "Pipeline",
    "PostgresConnection",
    "PubSubConnection",
    "RabbitMQConnection",
    "RedshiftConnection",
    "SQLiteConnection",
    "SchemaRegistryConnection",
    "SmallInt",
    "SnowflakeConnection",
    "String",
    "Target",
    "Text",
    "Time",
    "Timestamp",
    "TimestampTZ",
    "__version__",
    "config",
    "connect",
    "connections",
    "ematix",
    "get_connection",
    "natural_key",
    "nullable",
    "pk",
    "register_connection",
    "registered_connections",
    "renamed_from",
]
