"""The typed connections: one frozen dataclass per kind, redacted in every form of output.

Nothing here connects. Where a name is looked up is in ``config``; what a connection can do is
in ``backends``.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.model import FileOptions
from ematix_flow.redaction import (
    Concealed,
    is_secret_field,
    redact,
    remember_secret,
    remember_url_password,
)
from ematix_flow.secrets import expand, expand_url
from ematix_flow.urls import split_url

if TYPE_CHECKING:
    from typing_extensions import Self

FILE_FORMATS = ("parquet", "csv", "orc", "json_lines")
_MAX_PORT = 65535


@dataclass(frozen=True, repr=False, kw_only=True)
class Connection:
    """Base of all connections. ``${…}`` references stay as written until ``resolved()``."""

    name: str
    kind: ClassVar[str] = ""
    required: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, **given: Any) -> Self:
        """Refuse misspelt fields with a word of help; the generated ``__init__`` has none."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise UnknownName(f"{cls.__name__} has no field {name!r}", fix=nearest(name, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("a connection's name must be a text", fix='write name="warehouse"')
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _typed(self, field))
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
        values = {name: self._expanded(name, value) for name, value in self.fields().items()}
        for name, value in values.items():
            if isinstance(value, str):
                remember_url_password(value)
                if is_secret_field(name):
                    remember_secret(value)
        return dataclasses.replace(self, **values)

    def _expanded(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return expand_url(value) if "://" in value else expand(value)
        except ConfigError as error:
            error.what = f"connection {self.name!r}: {name}: {error.what}"
            raise

    def __repr__(self) -> str:
        inner = "".join(f", {name}={value!r}" for name, value in self.shown().items())
        return f"{type(self).__name__}(name={self.name!r}{inner})"


_FIELD_TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "Mapping[str, Any]": (Mapping, "a table of options"),
    "str | Connection": (object, ""),
}
_FLAGS = {"true": True, "false": False}


def _typed(connection: Connection, field: dataclasses.Field[Any]) -> Any:
    """A field's value in its own type; what would give a secret away is concealed."""
    value = getattr(connection, field.name)
    kind, wanted = _FIELD_TYPES[str(field.type).removesuffix(" | None")]
    if isinstance(value, str):
        if kind is str:
            shown = redact(field.name, value)
            return value if shown == value else Concealed(value, shown)
        if "${" in value:
            return value
        if kind is int and value.isdecimal():
            return int(value)
        if kind is bool and value in _FLAGS:
            return _FLAGS[value]
    right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if value is None or right:
        return value
    raise ConfigError(
        f"connection {connection.name!r}: {field.name}={redact(field.name, value)!r} "
        f"is not {wanted}",
        fix="correct it",
    )


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
        if self.url is not None and not self.url.startswith("${"):
            self._check_scheme(self.url)

    def _check_scheme(self, url: str) -> None:
        scheme, separator, _ = url.partition("://")
        if separator and scheme not in self.schemes:
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} cannot use a URL that starts "
                f"with {scheme}://",
                fix=f"use {' or '.join(s + '://' for s in self.schemes)}",
            )
        if not separator and re.match(r"\s*\w+\s*=", url):
            raise ConfigError(
                f"connection {self.name!r}: its url is a list of key=value pairs, not a URL",
                fix=f"write {self.schemes[0]}://user:password@host/database, or one field each",
            )

    def address(self) -> dict[str, Any]:
        """Host, port, database, user, password and the URL's query options, resolved.

        Fields fill in what the URL leaves open, such as a password kept in a secret.
        """
        fields = {
            name: getattr(self, name)
            for name in ("host", "port", "database", "user", "password")
            if getattr(self, name) is not None
        }
        if self.url is None:
            return {**fields, "options": {}}
        self._check_scheme(self.url)
        parts = split_url(self.url if "://" in self.url else f"{self.schemes[0]}://{self.url}")
        found = {
            "host": parts.host or "localhost",
            "port": self._port(parts.port),
            "database": parts.path or None,
            "user": parts.user,
            "password": parts.password,
        }
        address = {name: value for name, value in found.items() if value is not None}
        for name in fields:
            if name in address:
                raise ConfigError(
                    f"connection {self.name!r} states its {name} in the URL and in {name}=",
                    fix="keep one of them",
                )
        return {**address, **fields, "options": parts.options}

    def _port(self, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MAX_PORT):
            raise ConfigError(
                f"connection {self.name!r}: the port in its URL is not a number from 1 to "
                f"{_MAX_PORT}",
                fix="correct the URL; in a password write @ as %40, / as %2F and : as %3A",
            )
        return int(text)


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
        if (not self.path) == (not self.url):
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs path= or url=, one of them",
                fix=f'write for example path = "warehouse.{self.kind}"',
            )
        if self.url and not self.url.startswith(("${", f"{self.kind}://")):
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs a URL that starts with "
                f"{self.kind}://",
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
class StoredFiles(Connection):
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
        """Refuse formats that do not exist, and options of another format."""
        _check_choice(self, "format", FILE_FORMATS)
        self.check_options(self.file_options())

    def check_options(self, options: FileOptions) -> None:
        """Refuse options that belong to another file format than this store's."""
        for name in options.set_fields():
            owner = next(f for f in FILE_FORMATS if f.startswith(name.partition("_")[0]))
            # A store of text files may hold both kinds; each file is read by its own options.
            read_as_text = name.endswith("_read_options") and self.format in ("csv", "json_lines")
            if self.format in FILE_FORMATS and owner != self.format and not read_as_text:
                raise ConfigError(
                    f"connection {self.name!r}: {name} is an option of {owner} files, and its "
                    f"files are {self.format}",
                    fix=f'remove it, or set format = "{owner}"',
                )

    def file_options(self) -> FileOptions:
        """The options as they are handed to readers and writers."""
        names = [f.name for f in dataclasses.fields(FileOptions)]
        return FileOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, repr=False, kw_only=True)
class ObjectStoreLocalConnection(StoredFiles):
    """Files in a local folder."""

    path: str | None = None
    kind: ClassVar[str] = "object_store_local"
    required: ClassVar[tuple[str, ...]] = ("path",)


@dataclass(frozen=True, repr=False, kw_only=True)
class ObjectStoreS3Connection(StoredFiles):
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
        """Refuse formats and mechanisms that do not exist."""
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
