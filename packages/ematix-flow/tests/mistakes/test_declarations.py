"""Mistakes in what is declared: found when the project is loaded, exit code 2, nothing is run."""

from __future__ import annotations

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Mistake


def pipeline(options: str, body: str = "return ONE_ORDER", arguments: str = "conn") -> str:
    """A pipeline called ``load`` with these options."""
    return (
        f'@ematix.pipeline(target=Orders, target_connection="warehouse", {options})\n'
        f"def load({arguments}):\n    {body}\n"
    )


def table(columns: str) -> str:
    """A table of its own and a pipeline into it."""
    return (
        f'@ematix.table(schema="shop")\nclass Extra:\n    {columns}\n\n'
        '@ematix.pipeline(target=Extra, target_connection="warehouse")\n'
        "def load(conn):\n    return ONE_ORDER\n"
    )


def connection(body: str) -> str:
    """A connection of its own and a pipeline into it."""
    return f"@ematix.connection\nclass crm:\n    {body}\n\n" + pipeline("").replace(
        '"warehouse"', '"crm"'
    )


HERE = "pipelines.py:"

MISTAKES = [
    Mistake(
        "misspelt keyword",
        (HERE, "pipeline 'load' has no option 'modes'", "did you mean 'mode'?"),
        pipeline('modes="append"'),
    ),
    Mistake(
        "unknown mode",
        (HERE, "pipeline 'load'", "mode='upsert' is not known", "append", "merge"),
        pipeline('mode="upsert"'),
    ),
    Mistake(
        "bad cron",
        (HERE, "pipeline 'load'", "schedule='61 * * * *'", "not a cron expression", "five fields"),
        pipeline('schedule="61 * * * *"'),
    ),
    Mistake(
        "unknown time zone",
        (HERE, "pipeline 'load'", "timezone='Europe/Belrin' does not exist", "IANA"),
        pipeline('schedule="0 6 * * *", timezone="Europe/Belrin"'),
    ),
    Mistake(
        "dependency cycle",
        (HERE, "circle", "load → after → load", "remove one"),
        pipeline('depends_on=["after"]')
        + pipeline('name="after", depends_on=["load"]').replace("def load", "def after"),
    ),
    Mistake(
        "dependency on itself",
        (HERE, "circle", "load → load", "remove"),
        pipeline('depends_on=["load"]'),
    ),
    Mistake(
        "unknown dependency",
        (HERE, "pipeline 'load' depends on 'laod_all'", "does not exist", "'load_all'"),
        pipeline('depends_on=["laod_all"]') + pipeline('name="load_all"'),
    ),
    Mistake(
        "two pipelines of one name",
        (HERE, "pipeline 'load' is already declared at", HERE, "rename one"),
        pipeline("") + pipeline('name="load"').replace("def load", "def other"),
        command=("validate",),
    ),
    Mistake(
        "the same function twice",
        (HERE, "pipeline 'load' is already declared at", HERE, "rename one"),
        pipeline("") + pipeline(""),
        command=("validate",),
    ),
    Mistake(
        "no target",
        (HERE, "pipeline 'load'", "target=", "targets="),
        '@ematix.pipeline(target_connection="warehouse")\ndef load(conn):\n    return ONE_ORDER\n',
    ),
    Mistake(
        "target that is no table",
        (HERE, "pipeline 'load'", "target=dict is not a declared table", "@ematix.table"),
        pipeline("").replace("target=Orders", "target=dict"),
    ),
    Mistake(
        "parameter that nothing can be put into",
        (HERE, "pipeline 'load'", "parameter 'database'", "conn"),
        pipeline("", arguments="conn, database"),
    ),
    Mistake(
        "pipeline on a class",
        (HERE, "pipeline 'Load'", "goes on a function", "above a def"),
        '@ematix.pipeline(target=Orders, target_connection="warehouse")\nclass Load:\n    pass\n',
        command=("run", "Load"),
    ),
    Mistake(
        "unknown choice of an option",
        (HERE, "pipeline 'load'", "force_path='sparc' is not known", "'same_db'", "'spark'"),
        pipeline('force_path="sparc"'),
    ),
    Mistake(
        "flag that is no flag",
        (HERE, "pipeline 'load'", "allow_empty= must be True or False", "'yes'"),
        pipeline('mode="truncate", allow_empty="yes"'),
    ),
    Mistake(
        "options that contradict each other",
        (HERE, "pipeline 'load'", "allow_empty=True", 'mode="append"', "remove it"),
        pipeline("allow_empty=True"),
    ),
    Mistake(
        "key that is no column",
        (HERE, "pipeline 'load'", "keys= names 'idd'", "not a column of shop.orders", "'id'"),
        pipeline('mode="merge", keys=["idd"]'),
    ),
    Mistake(
        "no key at all",
        (HERE, "pipeline 'load'", "keys= is an empty list", "name at least one"),
        pipeline('mode="merge", keys=[]'),
    ),
    Mistake(
        "key column that is to be updated",
        (HERE, "pipeline 'load'", "update_columns= names 'id'", "part of the key", "remove it"),
        pipeline('mode="merge", update_columns=["id", "note"]'),
    ),
    Mistake(
        "watermark that nothing uses",
        (HERE, "pipeline 'load'", "watermark_column= goes with incremental=True", "add"),
        pipeline('watermark_column="id"'),
    ),
    Mistake(
        "lookback of another kind than the watermark",
        (HERE, "pipeline 'load'", "lookback= is a time span", "'id' is a BigInt", "lookback=1000"),
        "from datetime import timedelta\n"
        + pipeline('incremental=True, watermark_column="id", lookback=timedelta(1)'),
    ),
    Mistake(
        "watermark that is no exact value",
        (HERE, "pipeline 'load'", "'w' is a Double", "Numeric", "Double are not exact enough"),
        table("w: Double").replace(
            '"warehouse")', '"warehouse", incremental=True, watermark_column="w")'
        ),
    ),
    Mistake(
        "column that a history has itself",
        (HERE, "pipeline 'load'", "shop.extra declares column 'valid_to'", "scd2", "remove it"),
        table("id: Annotated[BigInt, pk()]\n    valid_to: Date").replace(
            '"warehouse")', '"warehouse", mode="scd2")'
        ),
    ),
    Mistake(
        "keys that are one text",
        (HERE, "pipeline 'load'", "keys= must be a list of column names", 'keys=("id",)'),
        pipeline('mode="merge", keys="id"'),
    ),
    Mistake(
        "column_map of an unknown column",
        (HERE, "pipeline 'load'", "column_map names 'nota'", "shop.orders", "'note'"),
        pipeline('source_table="orders", column_map={"nota": "note"}'),
    ),
    Mistake(
        "unknown key of retry",
        (HERE, "pipeline 'load'", "retry has no key 'attempts'", "max_attempts"),
        pipeline('retry={"attempts": 3}'),
    ),
    Mistake(
        "retry that is no number",
        (HERE, "pipeline 'load'", "retry['max_attempts'] must be a number", "'three'", "write"),
        pipeline('retry={"max_attempts": "three"}'),
    ),
    Mistake(
        "column of an unknown type",
        (HERE, "column 'total' of table Extra", "complex is not a column type", "Text"),
        table("total: complex"),
    ),
    Mistake(
        "column type that was not imported",
        (HERE, "table Extra", "'Monney'", "import"),
        table('total: "Monney"'),
    ),
    Mistake(
        "precision out of range",
        (HERE, "Numeric precision must be from 1 to 38, not 99", "Numeric[12, 2]"),
        table("total: Numeric[99, 2]"),
    ),
    Mistake(
        "marker that was not called",
        (HERE, "column 'id' of table Extra", "pk is not a column marker", "call it: pk()"),
        table("id: Annotated[BigInt, pk]"),
    ),
    Mistake(
        "nullable primary key",
        (HERE, "column 'id' of table Extra", "primary key cannot be nullable", "remove"),
        table("id: Annotated[BigInt | None, pk()]"),
    ),
    Mistake(
        "table without columns",
        (HERE, "table Extra", "declares no columns", "add columns"),
        table("pass"),
    ),
    Mistake(
        "column name that is reserved",
        (HERE, "column '_run_id' of table Extra", "rename it"),
        table("_run_id: Text"),
    ),
    Mistake(
        "unique constraint over an unknown column",
        (HERE, "__unique_constraints__ of table Extra", "'cod'", "code"),
        table('code: Text\n    __unique_constraints__ = (("cod",),)'),
    ),
    Mistake(
        "normalizer that does not fit its column",
        (HERE, "pipeline 'load'", "column 'id'", "trim() works on text", "remove it"),
        table("id: Annotated[BigInt, trim()]"),
    ),
    Mistake(
        "bad regular expression",
        (HERE, "regex_replace()", "'(a' has a ( without its )", "correct it"),
        table('code: Annotated[Text, regex_replace("(a", "b")]'),
        command=("run",),
    ),
    Mistake(
        "connection of an unknown kind",
        (HERE, "connection 'crm'", "unknown kind 'postgers'", "did you mean 'postgres'?"),
        connection('kind = "postgers"'),
        command=("validate",),
    ),
    Mistake(
        "connection without kind",
        (HERE, "connection 'crm' has no kind", "kind ="),
        connection('host = "db"'),
        command=("validate",),
    ),
    Mistake(
        "misspelt field of a connection",
        (HERE, "connection 'crm' of kind 'postgres'", "no field 'hots'", "did you mean 'host'?"),
        connection('kind = "postgres"\n    hots = "db"'),
        command=("validate",),
    ),
    Mistake(
        "connection with url and host",
        (HERE, "connection 'crm'", "both url= and host=", "keep one"),
        connection('kind = "postgres"\n    url = "postgres://h/d"\n    host = "db"'),
        command=("validate",),
    ),
    Mistake(
        "something else as a connection",
        (HERE, "register_connection takes a connection, not str", "PostgresConnection"),
        'register_connection("postgres://h/d")\n',
        command=("list",),
    ),
    Mistake(
        "syntax error in the module",
        (HERE, "syntax error", "correct the file"),
        "def load(conn:\n",
        command=("list",),
    ),
    Mistake(
        "module that fails while it is loaded",
        (HERE, "pipelines.py failed", "ZeroDivisionError: division by zero", "correct that line"),
        "1 / 0\n",
        command=("list",),
    ),
    Mistake(
        "module that imports what is not there",
        (HERE, "No module named 'no_such_package'", "install it"),
        "import no_such_package\n",
        command=("list",),
    ),
    Mistake(
        "module that leaves",
        (HERE, "pipelines.py failed", "SystemExit: 3"),
        "import sys\nsys.exit(3)\n",
        command=("list",),
    ),
    Mistake(
        "connection object that lacks a field",
        (HERE, "connection 'crm' of kind 'postgres'", "needs url= or host=", "write"),
        'register_connection(PostgresConnection(name="crm"))\n' + pipeline(""),
    ),
    Mistake(
        "module without a pipeline",
        ("no pipeline is declared in pipelines.py", "@ematix.pipeline"),
        command=("run",),
    ),
    Mistake(
        "one table twice in targets",
        (HERE, "pipeline 'load'", "targets= names shop.orders in 'warehouse' twice", "remove one"),
        pipeline("").replace(
            'target=Orders, target_connection="warehouse"',
            'targets=[Target(table=Orders, connection="warehouse")] * 2',
        ),
    ),
    Mistake(
        "source that is not available yet",
        ("pipeline 'load'", "'kafka' connection is not available yet", "use one of delta_local"),
        'register_connection(KafkaConnection(name="bus", bootstrap_servers="localhost:1"))\n'
        + pipeline('source_connection="bus"', "return 'SELECT 1'", ""),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_declaration(mistake: Mistake, make: Make) -> None:
    make(mistake)
