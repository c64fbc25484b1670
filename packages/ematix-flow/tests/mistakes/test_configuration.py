"""Mistakes in settings, secrets, addresses and on the command line itself: exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Mistake, Shop

INTO_CRM = (
    '@ematix.pipeline(target=Orders, target_connection="crm", source_connection="warehouse")\n'
    "def load(conn):\n    return ONE_ORDER\n"
)
GOOD = (
    '@ematix.pipeline(target=Orders, target_connection="warehouse")\n'
    "def load(conn):\n    return ONE_ORDER\n"
)

Prepare = Callable[[Shop], object]


def toml(text: str) -> Prepare:
    """Settings of the project."""
    return lambda shop: shop.toml(text)


def crm(*fields: str) -> Prepare:
    """A connection in the project's settings."""
    return toml("[connections.crm]\n" + "\n".join(fields) + "\n")


def variable(name: str, value: str) -> Prepare:
    """An environment variable."""
    return lambda shop: shop.monkeypatch.setenv(name, value)


def both(*steps: Prepare) -> Prepare:
    """One after the other."""

    def prepare(shop: Shop) -> None:
        for step in steps:
            step(shop)

    return prepare


def without_boto3(shop: Shop) -> None:
    """As if the extra had not been installed."""
    crm('url = "postgres://me:${aws:shop/crm}@localhost/crm"')(shop)
    shop.monkeypatch.setitem(sys.modules, "boto3", None)


def without_aws_login(shop: Shop) -> None:
    """An AWS that nobody has logged in to."""
    crm('url = "postgres://me:${aws:shop/crm}@localhost/crm"')(shop)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        shop.monkeypatch.delenv(name, raising=False)
    nothing = str(shop.folder / "nothing")
    shop.monkeypatch.setenv("AWS_CONFIG_FILE", nothing)
    shop.monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nothing)
    shop.monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    shop.monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")


MISTAKES = [
    Mistake(
        "unknown connection",
        ("pipeline 'load'", "no connection 'crm'", "EMATIX_FLOW_DSN_CRM", "[connections.crm]"),
        INTO_CRM,
    ),
    Mistake(
        "misspelt connection",
        ("pipeline 'load'", "no connection 'warehuose'", "did you mean 'warehouse'?"),
        GOOD.replace('"warehouse"', '"warehuose"'),
    ),
    Mistake(
        "missing environment variable",
        ("pipeline 'load'", "variable CRM_PASSWORD is not set", "export it"),
        INTO_CRM,
        prepare=crm('url = "postgres://me:${CRM_PASSWORD}@localhost/crm"'),
    ),
    Mistake(
        "reference of an unknown kind",
        ("${vualt:crm} is not a reference", "use ${VAR}", "${aws:…}", "${file:…}"),
        INTO_CRM,
        prepare=crm('url = "postgres://me:${vualt:crm}@localhost/crm"'),
    ),
    Mistake(
        "secret file that is missing",
        ("secret file /run/secrets/nothing", "No such file", "check the path"),
        INTO_CRM,
        prepare=crm('url = "postgres://me:${file:/run/secrets/nothing}@localhost/crm"'),
    ),
    Mistake(
        "aws secret without boto3",
        ("${aws:…}", "not installed", 'pip install "ematix-flow[secrets-aws]"'),
        INTO_CRM,
        prepare=without_boto3,
    ),
    Mistake(
        "aws secret without a login",
        ("AWS secret 'shop/crm'", "credentials", "check its name, the region"),
        INTO_CRM,
        prepare=without_aws_login,
    ),
    Mistake(
        "broken TOML",
        (".ematix-flow.toml is not valid TOML", "line 3", "correct the file"),
        GOOD,
        prepare=toml("[connections.crm\nurl = 1\n"),
    ),
    Mistake(
        "unknown section of the TOML",
        (".ematix-flow.toml has no section [conections]", "did you mean 'connections'?"),
        GOOD,
        prepare=toml('[conections.crm]\nurl = "postgres://h/d"\n'),
    ),
    Mistake(
        "unknown project key of the TOML",
        (".ematix-flow.toml", "[project] has no key 'runlog'", "did you mean 'run_log'?"),
        GOOD,
        prepare=toml('runlog = "x.db"\n'),
    ),
    Mistake(
        "modules that are no list",
        (".ematix-flow.toml", "modules", "must be a list of texts", 'modules = ["pipelines.py"]'),
        GOOD,
        prepare=lambda shop: shop.file(".ematix-flow.toml", "[project]\nmodules = 3\n"),
    ),
    Mistake(
        "unknown field of a connection in the TOML",
        (".ematix-flow.toml", "connection 'crm' of kind 'postgres'", "'pasword'", "'password'?"),
        INTO_CRM,
        prepare=crm('kind = "postgres"', 'host = "h"', 'pasword = "x"'),
    ),
    Mistake(
        "connection of the TOML without kind",
        (".ematix-flow.toml", "connection 'crm'", "neither kind nor url", "kind ="),
        INTO_CRM,
        prepare=crm('host = "h"'),
    ),
    Mistake(
        "connection of the TOML that is a number",
        (".ematix-flow.toml", "[connections.crm] must be a table", "url ="),
        INTO_CRM,
        prepare=toml("[connections]\ncrm = 5\n"),
    ),
    Mistake(
        "port that is text",
        (".ematix-flow.toml", "connection 'crm'", "port", "number"),
        INTO_CRM,
        prepare=crm('kind = "postgres"', 'host = "localhost"', 'port = "54x2"'),
    ),
    Mistake(
        "bad format of files",
        (".ematix-flow.toml", "connection 'crm'", "format='parqet' is not known", "parquet"),
        INTO_CRM,
        prepare=crm('kind = "object_store_local"', 'path = "x"', 'format = "parqet"'),
    ),
    Mistake(
        "URL of an unknown kind",
        ("connection 'crm'", "cannot tell the kind", "postgres://"),
        INTO_CRM,
        prepare=variable("EMATIX_FLOW_DSN_CRM", "potsgres://me:hunter2!x@localhost/crm"),
    ),
    Mistake(
        "URL without a scheme",
        ("connection 'crm'", "cannot tell the kind", "postgres://"),
        INTO_CRM,
        prepare=variable("EMATIX_FLOW_DSN_CRM", "localhost/crm"),
    ),
    Mistake(
        "malformed port in a URL",
        ("connection 'crm'", "port", "1 to 65535", "correct the URL"),
        INTO_CRM,
        prepare=variable("EMATIX_FLOW_DSN_CRM", "postgres://me:hunter2!x@localhost:99999/crm"),
    ),
    Mistake(
        "unknown option in a URL",
        ("connection 'crm'", "sslmod", "correct the connection's URL"),
        INTO_CRM,
        code=1,
        prepare=variable("EMATIX_FLOW_DSN_CRM", "postgres://me:x@localhost:1/crm?sslmod=require"),
    ),
    Mistake(
        "wrong module",
        ("there is no module 'piplines'", "check --module"),
        command=("run", "--module", "piplines"),
    ),
    Mistake(
        "wrong file as module",
        ("there is no file piplines.py", "check --module"),
        command=("run", "--module", "piplines.py"),
    ),
    Mistake(
        "folder without modules",
        ("folder drop holds no Python files", "check --module"),
        command=("run", "--module", "drop"),
    ),
    Mistake(
        "no project here",
        ("no project here", "--module my_pipelines", "flow init ."),
        command=("run",),
        prepare=lambda shop: (shop.folder / ".ematix-flow.toml").unlink(),
    ),
    Mistake(
        "unknown pipeline",
        ("there is no pipeline 'laod'", "did you mean 'load'?"),
        GOOD,
        command=("run", "laod"),
    ),
    Mistake(
        "unknown command",
        ("there is no command 'rnu'", "did you mean 'run'?", "flow --help"),
        command=("rnu",),
    ),
    Mistake(
        "unknown option",
        ("no such option '--modul'", "--module", "flow run --help"),
        command=("run", "--modul", "x"),
    ),
    Mistake(
        "bad parameter",
        ("--param", "'day' is not KEY=VALUE", "flow run --help"),
        GOOD,
        command=("run", "load", "--param", "day"),
    ),
    Mistake(
        "run log at a bad URL",
        ("run log cannot be at sqlit://", "did you mean 'sqlite'"),
        GOOD,
        command=("run", "load", "--run-log", "sqlit://runs.db"),
    ),
    Mistake(
        "run log that is no connection",
        ("the run log 'warehous' is no connection that is known here", "sqlite://warehous"),
        GOOD,
        command=("run", "load", "--run-log", "warehous"),
    ),
    Mistake(
        "unknown run",
        ("there is no run 'abc'", "flow runs list"),
        command=("runs", "show", "abc"),
    ),
    Mistake(
        "unknown status",
        ("'--status'", "'faild'", "failed", "flow runs list --help"),
        command=("runs", "list", "--status", "faild"),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_configuration(mistake: Mistake, make: Make) -> None:
    make(mistake)
