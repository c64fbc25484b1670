"""The typed connections: fields, checks, addresses, and how they keep their secrets."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import (
    DuckDBConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    RabbitMQConnection,
    SchemaRegistryConnection,
    SQLiteConnection,
    redaction,
)
from ematix_flow.connections import (
    CONNECTION_CLASSES,
    FILE_FORMATS,
    Connection,
    build_connection,
    format_from_path,
    nearest,
)
from ematix_flow.errors import ConfigError, MissingSecret, UnknownName
from ematix_flow.redaction import is_secret_field, redact_text

SECRET = "hunter22-Zx"

REQUIRED: dict[str, dict[str, Any]] = {
    "bigquery": {"project": "p"},
    "delta_local": {"path": "lake"},
    "delta_s3": {"bucket": "b"},
    "duckdb": {"path": "x.duckdb"},
    "glue_schema_registry": {"registry_name": "r"},
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "kinesis": {"stream_name": "s"},
    "mysql": {"url": f"mysql://me:{SECRET}@h/db"},
    "object_store_local": {"path": "lake"},
    "object_store_s3": {"bucket": "b"},
    "postgres": {"url": f"postgres://me:{SECRET}@h/db"},
    "pubsub": {"project_id": "p"},
    "rabbitmq": {"amqp_url": f"amqp://me:{SECRET}@h/v"},
    "redshift": {"url": f"redshift://me:{SECRET}@h/db"},
    "schema_registry": {"url": f"http://me:{SECRET}@sr:8081"},
    "snowflake": {"account": "a", "user": "u"},
    "sqlite": {"path": "x.db"},
}


def full(kind: str) -> Connection:
    """A connection with a secret in every field that may hold one."""
    cls = CONNECTION_CLASSES[kind]
    fields = dict(REQUIRED[kind])
    for field in dataclasses.fields(cls):
        if is_secret_field(field.name):
            fields[field.name] = SECRET
    return cls(name=f"my_{kind}", **fields)


def test_every_kind_is_tried() -> None:
    assert REQUIRED.keys() == CONNECTION_CLASSES.keys()


@pytest.mark.parametrize("kind", CONNECTION_CLASSES)
def test_no_output_holds_a_secret(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    held = full(kind)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("ematix_flow.test").debug("%s %r %s", held, held, [held])
    outputs = [
        repr(held), str(held), f"{held}", f"{held!r:>10}", f"{[held]} {({1: held})}",
        str(held.shown()), str(held.fields()), str(dataclasses.asdict(held)), str(vars(held)),
        str(dataclasses.astuple(held)), repr(held.resolved()), str(vars(held.resolved())),
        repr(copy.deepcopy(held)), repr(copy.copy(held)), caplog.text,
        repr(pickle.loads(pickle.dumps(held))),  # noqa: S301 - what was just pickled here
    ]  # fmt: skip
    for output in outputs:
        assert SECRET not in output
    assert held.name in outputs[0]


@pytest.mark.parametrize("kind", CONNECTION_CLASSES)
def test_copies_keep_the_secret_itself(kind: str) -> None:
    held = full(kind)
    for again in (
        copy.deepcopy(held),
        pickle.loads(pickle.dumps(held)),  # noqa: S301 - what was just pickled here
        dataclasses.replace(held),
        build_connection(held.name, {"kind": kind, **held.fields()}),
    ):
        assert again == held
        assert again.fields() == held.fields()
        assert hash(again) == hash(held)


@pytest.mark.parametrize("kind", CONNECTION_CLASSES)
def test_secrets_are_remembered_on_use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_remembered", set())
    held = full(kind)
    if any(SECRET in value for value in held.fields().values() if isinstance(value, str)):
        assert redact_text(f"refused {SECRET}") == f"refused {SECRET}"
        held.resolved()
        assert redact_text(f"refused {SECRET}") == "refused ***"


def test_a_traceback_holds_no_secret() -> None:
    held = PostgresConnection(name="w", url=f"postgres://me:{SECRET}@h:x/db", user="me")
    with pytest.raises(ConfigError) as caught:
        held.address()
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert SECRET not in "".join(shown.format())


@pytest.mark.parametrize("kind", CONNECTION_CLASSES)
def test_required_fields_are_required(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"connection 'c' of kind '{kind}' needs") as caught:
        CONNECTION_CLASSES[kind](name="c")
    assert caught.value.fix


@pytest.mark.parametrize("kind", CONNECTION_CLASSES)
def test_misspelt_fields_are_refused_everywhere(kind: str) -> None:
    cls = CONNECTION_CLASSES[kind]
    field = next(iter(REQUIRED[kind]))
    wrong = {f"{field}x": "y"}
    with pytest.raises(UnknownName, match=rf"{cls.__name__} has no field '{field}x'") as caught:
        cls(name="c", **wrong)
    assert caught.value.fix == f"did you mean '{field}'?"
    with pytest.raises(UnknownName) as caught:
        build_connection("c", {"kind": kind, **REQUIRED[kind], **wrong})
    assert str(caught.value) == (
        f"connection 'c' of kind '{kind}' has no field '{field}x'; did you mean '{field}'?"
    )


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_connection_has_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="name must be a text"):
        DuckDBConnection(name=name, path="x")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "postgres", "host": "h", "port": "abc"}, "port='abc' is not a whole number"),
        ({"kind": "postgres", "host": "h", "port": True}, "port=True is not a whole number"),
        ({"kind": "postgres", "host": "h", "password": 12345}, r"password='\*\*\*' is not a text"),
        ({"kind": "postgres", "url": 5}, "url=5 is not a text"),
        ({"kind": "pubsub", "project_id": "p", "anonymous_auth": 1}, "is not true or false"),
        (
            {"kind": "object_store_local", "path": "p", "format": "csv", "csv_read_options": "x"},
            "is not a table of options",
        ),
    ],
)
def test_values_of_the_wrong_type(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build_connection("c", fields)
    assert "connection 'c'" in caught.value.what


def test_numbers_and_flags_may_be_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_OF_PG", "5433")
    held = build_connection("c", {"kind": "postgres", "host": "h", "port": "5432"})
    assert held.fields()["port"] == 5432
    held = build_connection("c", {"kind": "postgres", "host": "h", "port": "${PORT_OF_PG}"})
    assert held.resolved().fields()["port"] == 5433
    held = build_connection("c", {"kind": "pubsub", "project_id": "p", "anonymous_auth": "true"})
    assert held.fields()["anonymous_auth"] is True
    monkeypatch.setenv("PORT_OF_PG", "none")
    with pytest.raises(ConfigError, match="port='none' is not a whole number"):
        build_connection("c", {"kind": "postgres", "host": "h", "port": "${PORT_OF_PG}"}).resolved()


@pytest.mark.parametrize(
    ("cls", "fields", "says"),
    [
        (KafkaConnection, {"payload_format": "xml"}, "payload_format='xml' is not known"),
        (KafkaConnection, {"auto_offset_reset": "middle"}, "auto_offset_reset='middle' is not"),
        (KafkaConnection, {"sasl_scram_mechanism": "md5"}, "sasl_scram_mechanism='md5' is not"),
        (ObjectStoreLocalConnection, {"format": "xml"}, "format='xml' is not known"),
        (ObjectStoreS3Connection, {"format": "delta"}, "format='delta' is not known"),
    ],
)
def test_choices(cls: type[Connection], fields: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        cls(name="c", **REQUIRED[cls.kind], **fields)  # type: ignore[arg-type]
    assert caught.value.fix.startswith("use one of ")
    reference = dict.fromkeys(fields, "${CHOICE}")
    cls(name="c", **REQUIRED[cls.kind], **reference)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("format", "option"),
    [
        ("csv", {"parquet_compression": "zstd"}),
        ("parquet", {"csv_header": True}),
        ("orc", {"csv_read_options": {"has_header": True}}),
        ("parquet", {"json_read_options": {"batch_size": 5}}),
    ],
)
def test_options_of_another_format(format: str, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ObjectStoreLocalConnection(name="lake", path="x", format=format, **option)
    (name,) = option
    assert f"connection 'lake': {name} is an option of" in str(caught.value)
    assert f"its files are {format}" in str(caught.value)


class TestServers:
    def test_a_url_or_its_parts(self) -> None:
        by_url = PostgresConnection(name="a", url="postgres://me:p%40ss@db:5433/shop?sslmode=on")
        by_parts = PostgresConnection(
            name="b", host="db", port=5433, user="me", password="p@ss", database="shop"
        )
        assert by_url.address() == {
            "host": "db", "port": 5433, "database": "shop", "user": "me", "password": "p@ss",
            "options": {"sslmode": "on"},
        }  # fmt: skip
        assert by_parts.address() == {**by_url.address(), "options": {}}

    def test_what_a_url_leaves_out(self) -> None:
        assert PostgresConnection(name="a", url="postgresql:///shop").address() == {
            "host": "localhost",
            "database": "shop",
            "options": {},
        }
        assert PostgresConnection(name="a", url="postgres://[::1]:5433").address() == {
            "host": "::1",
            "port": 5433,
            "options": {},
        }

    def test_a_password_beside_the_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PG_SECRET", "p@ss/[x")
        held = PostgresConnection(name="a", url="postgres://me@db/shop", password="${PG_SECRET}")
        resolved = held.resolved()
        assert isinstance(resolved, PostgresConnection)
        assert resolved.address()["password"] == "p@ss/[x"
        assert resolved.address()["user"] == "me"

    def test_the_same_thing_said_twice(self) -> None:
        held = PostgresConnection(name="a", url="postgres://me:x@db/shop", password="y")
        with pytest.raises(ConfigError, match="states its password in the URL and in password="):
            held.address()
        with pytest.raises(ConfigError, match="has both url= and host="):
            PostgresConnection(name="a", url="postgres://db", host="db")

    @pytest.mark.parametrize("port", ["x", "0", "65536", "-1", "5432x", "٣"])
    def test_bad_ports(self, port: str) -> None:
        held = PostgresConnection(name="a", url=f"postgres://me:{SECRET}@db:{port}/shop")
        with pytest.raises(ConfigError, match="the port in its URL is not a number") as caught:
            held.address()
        assert SECRET not in str(caught.value)

    def test_another_servers_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match="cannot use a URL that starts with mysql://"):
            PostgresConnection(name="a", url="mysql://db/shop")
        monkeypatch.setenv("SOME_URL", "mysql://db/shop")
        held = PostgresConnection(name="a", url="${SOME_URL}")
        with pytest.raises(ConfigError, match="use postgres:// or postgresql://"):
            held.resolved()

    def test_key_value_texts_are_not_urls(self) -> None:
        with pytest.raises(ConfigError, match="list of key=value pairs") as caught:
            PostgresConnection(name="a", url=f"host=db password={SECRET}")
        assert SECRET not in str(caught.value)

    def test_every_spelling_of_mysql(self) -> None:
        for scheme in ("mysql", "mysql+pymysql", "mariadb"):
            held = build_connection("m", {"url": f"{scheme}://db/shop"})
            assert isinstance(held, MySQLConnection)
            assert held.address()["host"] == "db"

    @given(st.text())
    def test_any_text_is_a_url_or_a_clear_error(self, text: str) -> None:
        try:
            address = PostgresConnection(name="a", url=f"postgres://{text}").address()
        except ConfigError:
            return
        assert address["host"]


class TestFileDatabases:
    @pytest.mark.parametrize(
        ("url", "file"),
        [
            ("sqlite://runs.db", "runs.db"),
            ("sqlite://a/b/runs.db", "a/b/runs.db"),
            ("sqlite:///var/runs.db", "/var/runs.db"),
            ("sqlite:////var/runs.db", "/var/runs.db"),
            ("sqlite://:memory:", ":memory:"),
        ],
    )
    def test_urls(self, url: str, file: str) -> None:
        assert SQLiteConnection(name="a", url=url).file() == file

    def test_paths(self) -> None:
        assert DuckDBConnection(name="a", path="w.duckdb").file() == "w.duckdb"

    @pytest.mark.parametrize("fields", [{}, {"path": ""}, {"path": "x", "url": "duckdb://x"}])
    def test_exactly_one_of_path_and_url(self, fields: dict[str, str]) -> None:
        with pytest.raises(ConfigError, match="needs path= or url=, one of them"):
            DuckDBConnection(name="a", **fields)  # type: ignore[arg-type]

    @pytest.mark.parametrize("url", ["sqlite://x.db", "x.duckdb", "postgres://h/db"])
    def test_another_databases_url(self, url: str) -> None:
        with pytest.raises(ConfigError, match="needs a URL that starts with duckdb://"):
            DuckDBConnection(name="a", url=url)


class TestBuilding:
    @pytest.mark.parametrize(
        ("url", "cls"),
        [
            ("postgres://h/db", PostgresConnection),
            ("postgresql://h/db", PostgresConnection),
            ("sqlite://x.db", SQLiteConnection),
            ("duckdb://x.duckdb", DuckDBConnection),
            ("amqp://h", RabbitMQConnection),
            ("amqps://h", RabbitMQConnection),
        ],
    )
    def test_the_kind_is_told_by_the_url(self, url: str, cls: type[Connection]) -> None:
        assert isinstance(build_connection("c", {"url": url}), cls)
        assert build_connection("c", {"dsn": url}) == build_connection("c", {"url": url})

    def test_the_kind_behind_a_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_URL", "sqlite://x.db")
        held = build_connection("c", {"url": "${SOME_URL}"})
        assert held.fields() == {"url": "${SOME_URL}"}
        monkeypatch.delenv("SOME_URL")
        with pytest.raises(MissingSecret, match="connection 'c': url: environment variable SOME_U"):
            held.resolved()

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"url": "x", "dsn": "y"}, "has both url and dsn"),
            ({}, "has neither kind nor url"),
            ({"path": "x"}, "has neither kind nor url"),
            ({"url": "ftp://h"}, "cannot tell the kind of connection from its URL"),
            ({"url": f"nonsense {SECRET}"}, "cannot tell the kind of connection from its URL"),
            ({"kind": "postgers", "url": "x"}, "unknown kind 'postgers'; did you mean 'postgres'"),
            ({"kind": 5, "url": "x"}, "unknown kind 5; known are: bigquery"),
            ({"kind": ["kafka"], "url": "x"}, "unknown kind"),
        ],
    )
    def test_what_cannot_be_built(self, fields: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError) as caught:
            build_connection("c", fields)
        assert says in str(caught.value)
        assert SECRET not in str(caught.value)

    def test_a_registry_held_by_its_instance(self) -> None:
        registry = SchemaRegistryConnection(
            name="sr", url="http://sr:8081", basic_auth_user="me", basic_auth_password=SECRET
        )
        kafka = KafkaConnection(name="k", bootstrap_servers="b:9092", schema_registry=registry)
        assert kafka.schema_registry is registry
        assert SECRET not in repr(kafka)


def test_nearest() -> None:
    assert nearest("hots", ["host", "port"]) == "did you mean 'host'?"
    assert nearest("zzz", ["port", "host"]) == "known are: host, port"


def test_formats_by_extension() -> None:
    known = {
        "a.parquet": "parquet", "a.pq": "parquet", "a.csv": "csv", "a.tsv": "csv", "a.orc": "orc",
        "a.json": "json_lines", "a.jsonl": "json_lines", "a.ndjson": "json_lines",
    }  # fmt: skip
    for path, format in known.items():
        assert format in FILE_FORMATS
        for compression in ("", ".gz", ".bz2", ".zst", ".zstd", ".lz4", ".snappy", ".GZ"):
            for folder in ("", "s3://bucket/day=1/", "/x.csv/"):
                assert format_from_path(folder + path + compression) == format
    for path in ("a", "a.txt", "a.gz", "csv", ".csv.txt", "a.parquet/part-0"):
        assert format_from_path(path) is None
