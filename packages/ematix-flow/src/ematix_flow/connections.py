"""The typed connections: one frozen dataclass per kind, redacted in every form of output.

Nothing here connects. Where a name is looked up is in ``config``; what a connection can do is
in ``backends``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.model import FileOptions
from ematix_flow.redaction import is_secret_field, redact, remember_secret, remember_url_password
from ematix_flow.secrets import expand

FILE_FORMATS = ("parquet", "csv", "orc", "json_lines")


@dataclass(frozen=True, repr=False, kw_only=True)
class Connection:
    """Base of all connections. ``${…}`` references stay as written until ``resolved()``."""

    name: str
    kind: ClassVar[str] = ""
    required: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for missing in self.required:
            if getattr(self, missing) in (None, ""):
                raise ConfigError(
                    f"connection {self.name!r} of kind {self.kind!r} needs {missing}=",
                    fix=f"add {missing}",
                )
        self.check()

    def check(self) -> None:
        """Refuse field values that cannot be right, as far as they hold no reference."""

    def fields(self) -> dict[str, Any]:
        """The fields that are set, name and kind aside."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name != "name" and getattr(self, f.name) is not None
        }

    def shown(self) -> dict[str, Any]:
        """The fields, safe to print."""
        return {name: redact(name, value) for name, value in self.fields().items()}

    def resolved(self) -> Connection:
        """A copy with every reference replaced by its value. Its secrets are remembered."""
        values = {
            name: expand(value) if isinstance(value, str) else value
            for name, value in self.fields().items()
        }
        for name, value in values.items():
            if isinstance(value, str):
                remember_url_password(value)
                if is_secret_field(name):
                    remember_secret(value)
        return dataclasses.replace(self, **values)

    def __repr__(self) -> str:
        inner = "".join(f", {name}={value!r}" for name, value in self.shown().items())
        return f"{type(self).__name__}(name={self.name!r}{inner})"


def _check_choice(connection: Connection, name: str, allowed: Iterable[str]) -> None:
    value = getattr(connection, name)
    if value is not None and "${" not in str(value) and value not in allowed:
        raise ConfigError(
            f"connection {connection.name!r}: {name}={value!r} is not known",
            fix=f"use one of {', '.join(allowed)}",
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class _ServerConnection(Connection):
    """A database server, given by ``url`` or by its parts."""

    url: str | None = None
    host: str | None = None
    port: int | None = None
    database: str | None = None
    user: str | None = None
    password: str | None = None
    schemes: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        if self.url is None and self.host is None:
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs url= or host=",
                fix=f"write for example url = "
                f'"{self.schemes[0]}://user:${{PASSWORD}}@host/database"',
            )
        if self.url is not None and self.host is not None:
            raise ConfigError(
                f"connection {self.name!r} has both url= and host=", fix="keep one of them"
            )
        if self.url is not None and "://" in self.url and not self.url.startswith("${"):
            scheme = self.url.split("://")[0]
            if scheme not in self.schemes:
                raise ConfigError(
                    f"connection {self.name!r} of kind {self.kind!r} cannot use a URL that "
                    f"starts with {scheme}://",
                    fix=f"use {' or '.join(s + '://' for s in self.schemes)}",
                )

    def address(self) -> dict[str, Any]:
        """Host, port, database, user, password and the URL's query options, resolved."""
        if self.url is None:
            parts = {
                "host": self.host,
                "port": self.port,
                "database": self.database,
                "user": self.user,
                "password": self.password,
            }
            return {**{k: v for k, v in parts.items() if v is not None}, "options": {}}
        split = urlsplit(self.url if "://" in self.url else f"{self.schemes[0]}://{self.url}")
        if split.scheme not in self.schemes:
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} cannot use a URL that starts "
                f"with {split.scheme}://",
                fix=f"use {' or '.join(s + '://' for s in self.schemes)}",
            )
        try:
            port = split.port
        except ValueError as error:
            raise ConfigError(
                f"connection {self.name!r}: the port in its URL is not a number from 0 to 65535",
                fix="correct the URL",
            ) from error
        parts = {
            "host": split.hostname or "localhost",
            "port": port,
            "database": unquote(split.path.lstrip("/")) or None,
            "user": unquote(split.username) if split.username else None,
            "password": unquote(split.password) if split.password else None,
        }
        options = dict(pair.partition("=")[::2] for pair in split.query.split("&") if "=" in pair)
        return {
            **{k: v for k, v in parts.items() if v is not None},
            "options": {k: unquote(v) for k, v in options.items()},
        }


@dataclass(frozen=True, repr=False, kw_only=True)
class PostgresConnection(_ServerConnection):
    """A PostgreSQL database."""

    kind: ClassVar[str] = "postgres"
    schemes: ClassVar[tuple[str, ...]] = ("postgres", "postgresql")


@dataclass(frozen=True, repr=False, kw_only=True)
class MySQLConnection(_ServerConnection):
    """A MySQL or MariaDB database."""

    kind: ClassVar[str] = "mysql"
    schemes: ClassVar[tuple[str, ...]] = ("mysql", "mysql+pymysql", "mariadb")


@dataclass(frozen=True, repr=False, kw_only=True)
class RedshiftConnection(_ServerConnection):
    """An Amazon Redshift warehouse."""

    s3_staging_dir: str | None = None
    iam_role: str | None = None
    kind: ClassVar[str] = "redshift"
    schemes: ClassVar[tuple[str, ...]] = ("redshift",)


@dataclass(frozen=True, repr=False, kw_only=True)
class _FileDatabaseConnection(Connection):
    """A database that lives in one file."""

    path: str | None = None
    url: str | None = None

    def check(self) -> None:
        if (self.path is None) == (self.url is None):
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs path= or url=, one of them",
                fix=f'write for example path = "warehouse.{self.kind}"',
            )

    def file(self) -> str:
        """The database file, resolved; ``:memory:`` where there is none."""
        if self.path is not None:
            return self.path
        path = (self.url or "").partition("://")[2]
        return "/" + path.lstrip("/") if path.startswith("/") else path


@dataclass(frozen=True, repr=False, kw_only=True)
class SQLiteConnection(_FileDatabaseConnection):
    """A SQLite file."""

    kind: ClassVar[str] = "sqlite"


@dataclass(frozen=True, repr=False, kw_only=True)
class DuckDBConnection(_FileDatabaseConnection):
    """A DuckDB file."""

    kind: ClassVar[str] = "duckdb"


@dataclass(frozen=True, repr=False, kw_only=True)
class _StoredFiles(Connection):
    """What every object store says about its files."""

    format: str = "parquet"
    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None

    def check(self) -> None:
        _check_choice(self, "format", FILE_FORMATS)

    def file_options(self) -> FileOptions:
        """The options as they are handed to readers and writers."""
        names = [f.name for f in dataclasses.fields(FileOptions)]
        return FileOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, repr=False, kw_only=True)
class ObjectStoreLocalConnection(_StoredFiles):
    """Files in a local folder."""

    path: str | None = None
    kind: ClassVar[str] = "object_store_local"
    required: ClassVar[tuple[str, ...]] = ("path",)


@dataclass(frozen=True, repr=False, kw_only=True)
class ObjectStoreS3Connection(_StoredFiles):
    """Files in an S3 bucket."""

    bucket: str | None = None
    region: str | None = None
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    prefix: str = ""
    kind: ClassVar[str] = "object_store_s3"
    required: ClassVar[tuple[str, ...]] = ("bucket",)


@dataclass(frozen=True, repr=False, kw_only=True)
class DeltaLocalConnection(Connection):
    """Delta tables in a local folder."""

    path: str | None = None
    kind: ClassVar[str] = "delta_local"
    required: ClassVar[tuple[str, ...]] = ("path",)


@dataclass(frozen=True, repr=False, kw_only=True)
class DeltaS3Connection(Connection):
    """Delta tables in an S3 bucket."""

    bucket: str | None = None
    region: str | None = None
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    prefix: str = ""
    kind: ClassVar[str] = "delta_s3"
    required: ClassVar[tuple[str, ...]] = ("bucket",)


@dataclass(frozen=True, repr=False, kw_only=True)
class SchemaRegistryConnection(Connection):
    """A Confluent-compatible schema registry."""

    url: str | None = None
    basic_auth_user: str | None = None
    basic_auth_password: str | None = None
    kind: ClassVar[str] = "schema_registry"
    required: ClassVar[tuple[str, ...]] = ("url",)


@dataclass(frozen=True, repr=False, kw_only=True)
class GlueSchemaRegistryConnection(Connection):
    """An AWS Glue schema registry."""

    registry_name: str | None = None
    region: str | None = None
    aws_profile: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None
    kind: ClassVar[str] = "glue_schema_registry"
    required: ClassVar[tuple[str, ...]] = ("registry_name",)


@dataclass(frozen=True, repr=False, kw_only=True)
class KafkaConnection(Connection):
    """A Kafka cluster."""

    bootstrap_servers: str | None = None
    group_id: str | None = None
    payload_format: str | None = None
    auto_offset_reset: str | None = None
    schema_registry_url: str | None = None
    schema_registry: str | Connection | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_scram_username: str | None = None
    sasl_scram_password: str | None = None
    sasl_scram_mechanism: str | None = None
    msk_iam_region: str | None = None
    kind: ClassVar[str] = "kafka"
    required: ClassVar[tuple[str, ...]] = ("bootstrap_servers",)

    def check(self) -> None:
        _check_choice(self, "payload_format", ("json", "raw_bytes", "avro", "protobuf"))
        _check_choice(self, "auto_offset_reset", ("earliest", "latest"))
        _check_choice(self, "sasl_scram_mechanism", ("sha-256", "sha-512"))


@dataclass(frozen=True, repr=False, kw_only=True)
class RabbitMQConnection(Connection):
    """A RabbitMQ broker."""

    amqp_url: str | None = None
    consumer_tag: str | None = None
    kind: ClassVar[str] = "rabbitmq"
    required: ClassVar[tuple[str, ...]] = ("amqp_url",)


@dataclass(frozen=True, repr=False, kw_only=True)
class PubSubConnection(Connection):
    """A Google Cloud Pub/Sub project."""

    project_id: str | None = None
    endpoint: str | None = None
    anonymous_auth: bool = False
    kind: ClassVar[str] = "pubsub"
    required: ClassVar[tuple[str, ...]] = ("project_id",)


@dataclass(frozen=True, repr=False, kw_only=True)
class KinesisConnection(Connection):
    """An AWS Kinesis stream."""

    stream_name: str | None = None
    region: str | None = None
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    kind: ClassVar[str] = "kinesis"
    required: ClassVar[tuple[str, ...]] = ("stream_name",)


@dataclass(frozen=True, repr=False, kw_only=True)
class SnowflakeConnection(Connection):
    """A Snowflake warehouse."""

    account: str | None = None
    user: str | None = None
    password: str | None = None
    private_key: str | None = None
    warehouse: str | None = None
    database: str | None = None
    schema: str | None = None
    role: str | None = None
    kind: ClassVar[str] = "snowflake"
    required: ClassVar[tuple[str, ...]] = ("account", "user")


@dataclass(frozen=True, repr=False, kw_only=True)
class BigQueryConnection(Connection):
    """A BigQuery project."""

    project: str | None = None
    dataset: str | None = None
    credentials_path: str | None = None
    location: str | None = None
    kind: ClassVar[str] = "bigquery"
    required: ClassVar[tuple[str, ...]] = ("project",)


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


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean …`` for a misspelt name, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(names)}"


def build_connection(name: str, fields: Mapping[str, Any]) -> Connection:
    """A typed connection from plain fields; ``dsn`` is another spelling of ``url``."""
    values = dict(fields)
    if "dsn" in values:
        if "url" in values:
            raise ConfigError(f"connection {name!r} has both url and dsn", fix="keep one of them")
        values["url"] = values.pop("dsn")
    kind = values.pop("kind", None) or _kind_of_url(name, values.get("url"))
    if kind not in CONNECTION_CLASSES:
        raise ConfigError(
            f"connection {name!r} has unknown kind {kind!r}", fix=nearest(kind, CONNECTION_CLASSES)
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


def _kind_of_url(name: str, url: str | None) -> str:
    if url is None:
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


_COMPRESSIONS = (".gz", ".bz2", ".zst", ".zstd", ".snappy", ".lz4")
_EXTENSIONS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json_lines",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".orc": "orc",
}


def format_from_path(path: str) -> str | None:
    """The file format an extension stands for, compression aside."""
    pure = PurePosixPath(path.lower())
    if pure.suffix in _COMPRESSIONS:
        pure = pure.with_suffix("")
    return _EXTENSIONS.get(pure.suffix)
