"""The typed connections: one frozen dataclass per kind, redacted in every form of output.

Nothing here connects. Where a name is looked up is in ``config``; what a connection can do is
in ``backends``.
"""

from __future__ import annotations

from ematix_flow.connections.base import Connection, nearest
from ematix_flow.connections.brokers import (
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    PubSubConnection,
    RabbitMQConnection,
    SchemaRegistryConnection,
)
from ematix_flow.connections.building import CONNECTION_CLASSES, build_connection
from ematix_flow.connections.databases import (
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.connections.stores import (
    FILE_FORMATS,
    DeltaLocalConnection,
    DeltaS3Connection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    StoredFiles,
    format_from_path,
)
from ematix_flow.connections.warehouses import (
    BigQueryConnection,
    RedshiftConnection,
    SnowflakeConnection,
)

__all__ = [
    "CONNECTION_CLASSES",
    "FILE_FORMATS",
    "BigQueryConnection",
    "Connection",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "DuckDBConnection",
    "GlueSchemaRegistryConnection",
    "KafkaConnection",
    "KinesisConnection",
    "MySQLConnection",
    "ObjectStoreLocalConnection",
    "ObjectStoreS3Connection",
    "PostgresConnection",
    "PubSubConnection",
    "RabbitMQConnection",
    "RedshiftConnection",
    "SQLiteConnection",
    "SchemaRegistryConnection",
    "SnowflakeConnection",
    "StoredFiles",
    "build_connection",
    "format_from_path",
    "nearest",
]
