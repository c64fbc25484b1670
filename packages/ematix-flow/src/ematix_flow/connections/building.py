"""From plain fields, as in TOML or a class body, to a typed connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ematix_flow.connections.base import Connection, nearest
from ematix_flow.connections.brokers import (
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    PubSubConnection,
    RabbitMQConnection,
    SchemaRegistryConnection,
)
from ematix_flow.connections.databases import (
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.connections.stores import (
    DeltaLocalConnection,
    DeltaS3Connection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
)
from ematix_flow.connections.warehouses import (
    BigQueryConnection,
    RedshiftConnection,
    SnowflakeConnection,
)
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.secrets import expand

CONNECTION_CLASSES: dict[str, type[Connection]] = {
    cls.kind: cls
    for cls in (
        BigQueryConnection,
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
        SQLiteConnection,
        SchemaRegistryConnection,
        SnowflakeConnection,
    )
}

_SCHEME_KINDS = {
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql",
    "mysql+pymysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
    "redshift": "redshift",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
}


def build_connection(name: str, fields: Mapping[str, Any]) -> Connection:
    """A typed connection from plain fields; ``dsn`` is another spelling of ``url``."""
    values = dict(fields)
    if "dsn" in values:
        if "url" in values:
            raise ConfigError(f"connection {name!r} has both url and dsn", fix="keep one of them")
        values["url"] = values.pop("dsn")
    kind = values.pop("kind", None) or _kind_of_url(name, values.get("url"))
    if not isinstance(kind, str) or kind not in CONNECTION_CLASSES:
        raise ConfigError(
            f"connection {name!r} has unknown kind {kind!r}",
            fix=nearest(str(kind), CONNECTION_CLASSES),
        )
    cls = CONNECTION_CLASSES[kind]
    known = [f.name for f in dataclasses.fields(cls) if f.name != "name"]
    if kind == "rabbitmq" and "url" in values:
        values["amqp_url"] = values.pop("url")
    for field in values:
        if field not in known:
            raise UnknownName(
                f"connection {name!r} of kind {kind!r} has no field {field!r}",
                fix=nearest(field, known),
            )
    return cls(name=name, **values)


def _kind_of_url(name: str, url: object) -> str:
    if not isinstance(url, str):
        raise ConfigError(
            f"connection {name!r} has neither kind nor url",
            fix='add for example kind = "postgres" or url = "postgres://…"',
        )
    expanded = expand(url) if url.startswith("${") else url
    scheme = expanded.partition("://")[0]
    if scheme not in _SCHEME_KINDS:
        raise ConfigError(
            f"connection {name!r}: cannot tell the kind of connection from its URL",
            fix=f"start it with one of {', '.join(s + '://' for s in sorted(_SCHEME_KINDS))}",
        )
    return _SCHEME_KINDS[scheme]
