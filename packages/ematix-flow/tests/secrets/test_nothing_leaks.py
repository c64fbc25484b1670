"""No secret in anything that is printed, logged or stored: one long day, then a search.

Every password has a core of letters that survives any encoding, so that one search finds it
plain, URL-encoded, escaped or quoted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

HERE = Path(__file__).parent

CORES = {
    "ENV": "elkfjord9",
    "FILE": "gullwharf9",
    "TOML": "bargequay9",
    "CODE": "skiffpier9",
    "SET": "ferrydock9",
    "OTHER": "sailmast9",
}
PASSWORDS = {
    "ENV": f"a@{CORES['ENV']}/b:#?&%+",
    "FILE": f'it\'s "{CORES["FILE"]}" $ \\ é',
    "TOML": f"{CORES['TOML']};x=1, y",
    "CODE": f"<{CORES['CODE']}>|*",
    "SET": f"{CORES['SET']}@!",
    "OTHER": f"{CORES['OTHER']}/@",
}

PIPELINES = """\
import os
from pathlib import Path
from typing import Annotated

from ematix_flow import (
    BigInt, KafkaConnection, ObjectStoreS3Connection, PostgresConnection, RabbitMQConnection,
    SnowflakeConnection, Text, ematix, pk, register_connection,
)

register_connection(PostgresConnection(name="by_code", url="{code_url}"))
register_connection(
    KafkaConnection(name="bus", bootstrap_servers="b:1", sasl_plain_username="u",
                    sasl_plain_password="{other}")
)
register_connection(RabbitMQConnection(name="rabbit", amqp_url="amqp://u:{other_quoted}@h/v"))
register_connection(
    ObjectStoreS3Connection(name="s3", bucket="b", access_key_id="A", secret_access_key="{other}")
)
register_connection(SnowflakeConnection(name="snow", account="a", user="u", private_key="{other}"))


@ematix.table(schema="shop")
class Rows:
    id: Annotated[BigInt, pk()]
    note: Text


def look(batches):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(bytes(1), b" ")
        except OSError:
            continue
        with open({evidence!r} + "/cmdlines.txt", "ab") as file:
            file.write(words + bytes([10]))
    yield from batches


def load(name, **options):
    def declare(function):
        function.__name__ = name
        return ematix.pipeline(
            target=Rows, name=name, target_connection=name, mode="truncate", **options
        )(function)

    return declare


@load("by_env", source_connection="by_file")
def by_env(spark):
    # Nested, so that it goes to the Python workers by value.
    from pyspark import cloudpickle

    seen = cloudpickle.loads(cloudpickle.dumps(look))
    return spark.range(3).selectExpr("id", "'x' AS note").mapInArrow(seen, "id LONG, note STRING")


@load("by_file", source_connection="by_env", force_path="spark")
def by_file(conn):
    conn.query("SELECT 1 AS one")
    return "SELECT id, note FROM shop.rows"


@load("by_toml", force_path="same_db", source_connection="by_toml")
def by_toml(conn, target, run):
    return "SELECT 5::bigint AS id, 'y' AS note"


@load("by_code", source_connection="by_code")
def by_code(conn):
    return "SELECT 5::bigint AS id, 'y' AS note"


@ematix.pipeline(target=Rows, target_connection="by_env", source_connection="by_env")
def literal(conn):
    secret = os.environ["ENV_PASSWORD"]
    return f"SELECT 9::bigint AS id, $q${{secret}}$q$ AS note FROM shop.missing"


@ematix.pipeline(target=Rows, target_connection="wrong", source_connection="wrong")
def wrong(conn):
    return "SELECT 1"


@ematix.pipeline(target=Rows, target_connection="by_env", source_connection="by_env")
def raising(conn):
    raise ValueError(f"cannot use {{os.environ['ENV_PASSWORD']}} nor {code_url}")


@ematix.pipeline(target=Rows, target_connection="by_env", source_connection="by_env")
def in_worker(spark):
    def fail(batches):
        raise ValueError("cannot reach " + "postgres://me:" + os.environ["SET"] + "@db/x")
        yield

    return spark.range(3).mapInArrow(fail, "id LONG, note STRING")


@ematix.pipeline(target=Rows, target_connection="bus", source_connection="rabbit")
def unavailable(conn):
    return "SELECT 1"
"""


@pytest.fixture
def roles(postgres: object) -> Iterator[dict[str, str]]:
    """A role per password in a database of their own, and where to reach it."""
    server: str = postgres.create_database()  # type: ignore[attr-defined]
    made = []
    with psycopg.connect(server, autocommit=True) as raw:
        for name in ("ENV", "FILE", "TOML", "CODE"):
            role = f"keeper_{name.lower()}_{os.getpid()}"
            escaped = PASSWORDS[name].replace("'", "''")
            raw.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{escaped}'".encode())
            made.append(role)
    place = server.rpartition("@")[2]
    yield {"place": place, **dict(zip(("ENV", "FILE", "TOML", "CODE"), made, strict=True))}
    postgres.drop_database(place.rpartition("/")[2])  # type: ignore[attr-defined]
    for role in made:
        postgres.execute(f"DROP ROLE {role}")  # type: ignore[attr-defined]


def write_project(folder: Path, roles: dict[str, str], evidence: Path) -> None:
    """Connections of every origin, pipelines over all of them."""
    server, _, database = roles["place"].partition("/")
    host, _, port = server.partition(":")
    (folder / "password.txt").write_text(PASSWORDS["FILE"] + "\n")
    (folder / ".ematix-flow.toml").write_text(
        f"""\
[project]
modules = ["pipelines.py"]

[connections.by_env]
url = "postgres://{roles["ENV"]}:${{ENV_PASSWORD}}@{roles["place"]}"

[connections.by_file]
kind = "postgres"
host = "{host}"
port = {port}
database = "{database}"
user = "{roles["FILE"]}"
password = "${{file:password.txt}}"

[connections.by_toml]
url = "postgres://{roles["TOML"]}:{quote(PASSWORDS["TOML"], safe="")}@{roles["place"]}"

[connections.wrong]
url = "postgres://{roles["ENV"]}:{quote(PASSWORDS["OTHER"], safe="")}@{roles["place"]}"
"""
    )
    code = quote(PASSWORDS["CODE"], safe="")
    (folder / "pipelines.py").write_text(
        PIPELINES.format(
            code_url=f"postgres://{roles['CODE']}:{code}@{roles['place']}",
            other=PASSWORDS["OTHER"],
            other_quoted=quote(PASSWORDS["OTHER"], safe=""),
            evidence=str(evidence),
        )
    )


def test_nothing_leaks(roles: dict[str, str], tmp_path: Path) -> None:
    project, evidence, home = (tmp_path / n for n in ("project", "evidence", "home"))
    temporary = tmp_path / "tmp"
    for folder in (project, evidence, home, temporary):
        folder.mkdir()
    write_project(project, roles, evidence)
    with (evidence / "output.txt").open("wb") as output:
        done = subprocess.run(
            [sys.executable, str(HERE / "life.py"), str(evidence)],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=project,
            timeout=280,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("EMATIX_FLOW_DSN")},
                "EMATIX_FLOW_HOME": str(home),
                "TMPDIR": str(temporary),
                "ENV_PASSWORD": PASSWORDS["ENV"],
                "SET": PASSWORDS["SET"],
                "PYTHONIOENCODING": "utf-8",
            },
        )
    printed = (evidence / "output.txt").read_text(errors="replace")
    assert done.returncode == 0, printed[-3000:]
    # The day was a full one: all of these happened, so all of them were searched.
    assert printed.count("## exit code 0") >= 15, printed
    for name in ("by_env", "by_file", "by_toml", "by_code"):
        assert f"run of {name} succeeded" in printed
    assert "refused the user or password" in printed
    assert "raised ValueError: cannot use ***" in printed
    assert "JDBCRelation" in printed
    assert (evidence / "cmdlines.txt").read_bytes().count(b"java") >= 1
    assert (evidence / "settings.txt").stat().st_size > 1000
    assert list((home / "logs").glob("*.log"))

    written_by_the_user = {
        project / "pipelines.py",
        project / "password.txt",
        project / ".ematix-flow.toml",
        home / "connections.toml",
    }
    searched = [p for p in tmp_path.rglob("*") if p.is_file() and p not in written_by_the_user]
    assert home / "run_log.db" in searched
    leaks = [
        f"{name} in {path.relative_to(tmp_path)}: …{_around(content, core)}…"
        for path in searched
        for content in [path.read_bytes()]
        for name, core in CORES.items()
        if core.encode() in content
    ]
    assert not leaks, "\n".join(leaks)


def _around(content: bytes, core: str) -> str:
    place = content.index(core.encode())
    return content[max(0, place - 120) : place + 60].decode(errors="replace")
