"""A day in the life of a project full of secrets: every command, at the finest log level.

Started by ``test_nothing_leaks`` as a process of its own; the folder it is given takes what lies
in Spark's work folder and on the command lines of all processes while pipelines run.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import traceback
from pathlib import Path

from ematix_flow import config
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.loading import load_backend
from ematix_flow.cli.main import main
from ematix_flow.discovery import load_project
from ematix_flow.engine.classic import ClassicEngine
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import EmatixError

# Python's own trace quotes what the user's code wrote and raised: with these, a secret.
OUTSPOKEN = ("literal", "raising", "in_worker")
# These have shown what they can show in the commands.
SLOW = ("by_env", "by_file")

COMMANDS: list[list[str]] = [
    ["list"],
    ["status"],
    ["validate"],
    ["connections", "list"],
    ["connections", "check"],
    ["secrets", "test", "ENV_PASSWORD"],
    ["secrets", "test", "${file:password.txt}"],
    ["connections", "set", "later", "kind=postgres", "host=db", f"password={os.environ['SET']}"],
    ["connections", "set", f"later=postgres://me:{os.environ['SET']}@db/x"],
    ["preview", "by_env"],
    ["preview", "literal"],
    ["preview", "wrong"],
    ["dry-run", "by_env"],
    ["run", "by_env", "by_file"],
    ["run", "by_file", "--param", f"api_token={os.environ['SET']}"],
    ["run", "--verbose"],
    ["runs", "list"],
    ["doctor"],
]


def say(*words: object) -> None:
    """A headline between outputs."""
    print("##", *words, flush=True)


def commands() -> None:
    """Every command, as text and as JSON, its log lines in both forms too."""
    for command in COMMANDS:
        heavy = command[0] in ("dry-run", "run")
        for form in ("json",) if heavy else ("text", "json"):
            say(*command[:2], form)
            options = ["--format", form, "--log-format", form, "--log-level", "debug"]
            say("exit code", main([*command, *options]))
    from ematix_flow.run.log import open_run_log

    log = open_run_log()
    for record in log.list(limit=100):
        say(repr(record))
        for command in (["runs", "show", record.run_id], ["logs", record.run_id]):
            main([*command, "--format", "json", "--log-level", "debug"])
            main([*command, "--log-level", "debug"])
    log.close()


def objects() -> None:
    """What Python shows of the things that hold a secret."""
    with load_project() as project:
        for name in config.connection_names():
            declared = config.resolve_connection(name)
            held: list[object] = [declared, declared.connection, declared.connection.shown()]
            try:
                held += [resolved := declared.connection.resolved(), vars(resolved)]
                held += [
                    backend := load_backend(declared.connection),
                    vars(backend),
                    backend.open(),
                ]
            except EmatixError as error:
                held += [error, vars(error)]
                held.append(pickle.loads(pickle.dumps(error)))  # noqa: S301 - our own bytes
            for thing in held:
                say(repr(thing), str(thing), f"{thing!r:.2000}")
        for pipeline in project.pipelines:
            say(repr(pipeline), repr(pipeline.spec))
            if pipeline.name in SLOW:
                continue
            try:
                say(repr(pipeline.sync()))
            except EmatixError as error:
                say(repr(error), json.dumps(str(error)))
                if pipeline.name not in OUTSPOKEN:
                    traceback.print_exc()


def engine(evidence: Path) -> None:
    """What Spark itself would tell: its settings, a query's plan, its log and its files."""
    spark_engine = current_engine()
    assert isinstance(spark_engine, ClassicEngine)
    assert spark_engine.log is not None
    settings = spark_engine.spark.sql("SET -v").collect()
    (evidence / "settings.txt").write_text("\n".join(map(str, settings)))
    source = load_backend(config.resolve_connection("by_env").connection)
    rows = source.read(spark_engine, SourceQuery("SELECT 1 AS id"))
    rows.explain(True)
    rows.explain("formatted")
    say(rows.collect())
    workspace = spark_engine.workspace.path
    shutil.copytree(workspace, evidence / "workspace", ignore=shutil.ignore_patterns("lock"))
    shutil.copy(spark_engine.log, evidence / "engine.log")


if __name__ == "__main__":
    commands()
    objects()
    engine(Path(sys.argv[1]))
