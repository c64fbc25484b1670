"""Writes the reference pages, and the support table of README.md, from the code.

``python scripts/generate_reference.py`` writes; with ``--check`` it only says what is stale. What
the code cannot say of itself, the meaning of an option, stands in ``reference_texts.py``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from ematix_flow import Annotated, ManagedTable, Text, Timestamp, config, ematix, errors, pk, types
from ematix_flow.backends.base import Backend
from ematix_flow.cli.main import app
from ematix_flow.cli.worker import worker
from ematix_flow.connections import CONNECTION_CLASSES, Connection
from ematix_flow.declaring_options import MODES
from ematix_flow.modes.base import ENTRY_POINTS as MODE_ENTRY_POINTS
from ematix_flow.redaction import is_secret_field
from ematix_flow.sql.spark import spark_ddl

# Run as a file, Python would look beside it only.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.reference_texts import (
    FIELDS,
    OPTIONS,
    PRODUCTS,
    SETTINGS,
    TOML_KEYS,
)

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/generate_reference.py; change the code or that script instead. -->"
SUPPORT_START, SUPPORT_END = "<!-- support: start -->", "<!-- support: end -->"
YES, NO, LATER = "yes", "—", "not yet"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def code(text: object) -> str:
    return f"`{text}`"


def sentence(documented: object) -> str:
    """The first paragraph of a docstring, on one line, in Markdown."""
    text = inspect.getdoc(documented) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")


def page(title: str, *parts: str, wide: bool = False) -> str:
    front = ("---\nhide: [toc]\n---",) if wide else ()
    return "\n\n".join((*front, f"# {title}", NOTE, *parts)) + "\n"


# The command line


def cli() -> str:
    context = click.Context(
        app, info_name="flow", terminal_width=88, max_content_width=88, **app.context_settings
    )
    intro = (
        "Results go to stdout, everything else to stderr. With `--format json` stdout is one JSON"
        " document, or nothing if the command could not begin. A failure is one line that begins"
        " with `flow: error:`."
    )
    codes = table(
        ("exit code", "meaning"),
        (
            ("0", "done"),
            ("1", "a run or a check failed"),
            ("2", "wrong usage, declaration or configuration; what was sound may have run"),
            ("130", "cancelled by Ctrl-C or SIGTERM; nothing was written"),
        ),
    )
    alone = click.Context(
        worker,
        info_name="flow-worker",
        terminal_width=88,
        max_content_width=88,
        **worker.context_settings,
    )
    return page("Command line", intro, codes, *_help(app, context), *_help(worker, alone))


def _help(command: click.Command, context: click.Context) -> list[str]:
    shown = command.get_help(context).rstrip()
    parts = [f"## {context.command_path}\n\n```text\n{shown}\n```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                inner = click.Context(
                    found, parent=context, info_name=name, terminal_width=88, max_content_width=88
                )
                parts += _help(found, inner)
    return parts


# Connections


def connections() -> str:
    executed = _backend_classes()
    parts = [
        "Every kind can be declared, stored and listed. A pipeline can read and write those marked"
        " *runs now*; the others raise `NotAvailableYet` or `Unsupported` when they are used."
        " Where a connection may be declared is in [Connections and secrets]"
        "(../how-to/connections.md).".replace("] (", "]("),
    ]
    for kind, cls in sorted(CONNECTION_CLASSES.items()):
        runs = "*Runs now.*" if kind in executed else "*Declared only.*"
        rows = [
            (code(f.name), _needed(cls, f), FIELDS.get((kind, f.name)) or FIELDS[("", f.name)])
            for f in dataclasses.fields(cls)
            if f.name != "name"
        ]
        parts.append(
            f"## {kind}\n\n{sentence(cls)} {runs} In Python: `{cls.__name__}`.\n\n"
            + table(("field", "default", "meaning"), rows)
        )
    return page("Connections", *parts)


def _needed(cls: type[Connection], field: dataclasses.Field[Any]) -> str:
    if field.name in cls.required:
        return "required"
    default = "" if field.default in (None, dataclasses.MISSING) else code(repr(field.default))
    return f"{default} never shown".strip() if is_secret_field(field.name) else default


# Column types


def column_types() -> str:
    held = {kind: cls(_any_connection(kind)) for kind, cls in _backend_classes().items()}
    databases = [k for k, backend in held.items() if backend.capabilities.constraints]
    rows = []
    for sample in _sample_types():
        stored = [code(held[k].stored_type(sample)) for k in databases]
        rows.append((code(sample), *stored, code(spark_ddl(sample))))
    headings = ("declared", *(PRODUCTS[k] for k in databases), "Parquet, ORC (Spark)")
    meanings = [(code(sample), sentence(type(sample))) for sample in _sample_types()]
    return page(
        "Column types",
        "Import them from `ematix_flow`. `T | None`, or the marker `nullable()`, allows NULL;"
        " without it the column is NOT NULL. How values that differ between databases are treated"
        " is explained in [Types](../concepts/types.md).",
        table(("declared", "holds"), meanings),
        "## How each is stored",
        table(headings, rows),
        wide=True,
    )


def _sample_types() -> list[types.ColumnType]:
    plain = [
        types.SmallInt, types.Integer, types.BigInt, types.Float, types.Double, types.Boolean,
        types.Text,
    ]  # fmt: skip
    rest = [
        types.Date, types.Time, types.Timestamp, types.TimestampTZ, types.JSON, types.JSONB,
        types.UUID, types.Bytes,
    ]  # fmt: skip
    return [
        *(kind() for kind in plain),
        types.String(256),
        types.Numeric(12, 2),
        *(kind() for kind in rest),
        types.Array(types.Text()),
    ]


# Pipeline options


class _Sample(ManagedTable):
    __schema__ = "s"
    __tablename__ = "t"
    id: Annotated[Text, pk()]
    at: Timestamp


def pipeline_options() -> str:
    options = inspect.signature(ematix.pipeline).parameters
    rows = [
        (code(name), _default(parameter), OPTIONS[name])
        for name, parameter in options.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    available = {point.name for point in entry_points(group=MODE_ENTRY_POINTS)}
    modes = table(
        ("mode", "executed in this version?"),
        ((code(mode), YES if mode in available else LATER) for mode in MODES),
    )
    return page(
        "Pipeline options",
        "All are keywords of `@ematix.pipeline(…)`; `@ematix.job` is the same. Every option is"
        " checked when it is declared. One that this version cannot execute makes a run fail with"
        " `NotAvailableYet` before any row moves.",
        table(("option", "default", "meaning"), rows),
        "## Modes",
        modes,
        "## What a function may ask for",
        table(
            ("parameter", "what it gets"),
            (
                (
                    "`conn`, `src`, `source`, or any name when it is the only one",
                    "the live source connection: `query`, `execute`, `ping`, `info`, `read_df`",
                ),
                ("`target`, `tgt`", "the live target connection"),
                ("`spark`", "the SparkSession"),
                ("`run`", "`id`, `parameters`, `slot`, `last_watermark`"),
            ),
        ),
        "It returns SQL in the source's dialect, a Spark DataFrame, or nothing when"
        " `source_table=` names the source. `async def` works too.",
    )


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is None else code(repr(parameter.default))


# Errors, settings, support


def error_tree() -> str:
    tree = (inspect.getdoc(errors) or "").split("\n\n")[1]
    rows = [
        (code(cls.__name__), str(cls.exit_code), sentence(cls))
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.EmatixError)
    ]
    order = {line.strip("│├└─ ").split(" ")[0]: n for n, line in enumerate(tree.splitlines())}
    rows.sort(key=lambda row: order[row[0].strip("`")])
    return page(
        "Errors",
        "Everything this package raises on purpose is an `EmatixError`, in `ematix_flow.errors`."
        " Its text is one sentence: what is wrong, where, and what to do. `what`, `fix` and"
        " `where` hold the parts.",
        f"```text\n{inspect.cleandoc(tree)}\n```",
        table(("error", "exit code of `flow`", "when"), rows),
    )


def settings() -> str:
    return page(
        "Settings",
        "## Environment variables",
        table(("variable", "meaning"), ((code(n), text) for n, text in SETTINGS.items())),
        f"## {config.PROJECT_FILE}",
        "Read from the folder in which `flow` or Python runs.",
        table(("key", "meaning"), ((code(n), text) for n, text in TOML_KEYS.items())),
        "## Files",
        table(
            ("file", "what it is"),
            (
                ("`~/.ematix-flow/connections.toml`", "your own connections; mode 0600"),
                ("`~/.ematix-flow/run_log.db`", "the run log, a SQLite file"),
                ("`~/.ematix-flow/undelivered/`", "records for a run log that was down"),
                ("`~/.ematix-flow/logs/<run id>.log`", "the log lines of one run"),
                ("`~/.cache/ematix-flow/`", "jars and the class archive; safe to delete"),
            ),
        ),
    )


PROVEN = {
    "postgres": "PostgreSQL (`postgres`)",
    "mysql": "MySQL (`mysql`)",
    "mariadb": "MariaDB (`mysql`)",
    "sqlite": "SQLite (`sqlite`)",
    "duckdb": "DuckDB (`duckdb`)",
    "delta": "Delta Lake, local (`delta_local`)",
    "parquet": "Parquet files (`object_store_local`)",
    "csv": "CSV files (`object_store_local`)",
    "orc": "ORC files (`object_store_local`)",
    "json_lines": "JSON lines files (`object_store_local`)",
}
FEATURES = (
    *("source", "append", "truncate", "merge", "scd2", "incremental", "scd2 by event time"),
    *("deletes", "backfill", "transforms", "fan-out", "schema evolution", "plan and apply"),
    "same database",
)


def support(*, short: bool = False) -> str:
    """What the conformance tests have proven, backend by backend."""
    proven: dict[str, list[str]] = json.loads(
        (REFERENCE / "support.json").read_text(encoding="utf-8")
    )
    features = FEATURES[:6] if short else FEATURES
    rows = [
        (PROVEN[name], *(YES if feature in proven.get(name, ()) else NO for feature in features))
        for name in PROVEN
    ]
    later = sorted(set(CONNECTION_CLASSES) - set(_backend_classes()))
    if short:
        others = ", ".join(code(kind) for kind in later)
        rows.append((f"declared only: {others}", *[LATER] * len(features)))
    else:
        rows += [(f"{PRODUCTS[k]} ({code(k)})", *[LATER] * len(features)) for k in later]
    return table(("", *features), rows)


def support_page() -> str:
    return page(
        "Support",
        "Made from the results of the conformance tests, which run against the real product: a"
        " cell says *yes* when the tests of that feature that were run on that backend have passed."
        " Every push runs each test on some of the backends, `make soak` on all of them.",
        support(),
        "*not yet*: the connection can be declared, stored and listed, but no pipeline can use it"
        " in this version. *same database*: a load whose source and target are one database runs"
        " inside it, without Spark.",
    )


def readme() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(SUPPORT_START)
    _, _, after = rest.partition(SUPPORT_END)
    return f"{before}{SUPPORT_START}\n\n{support(short=True)}\n\n{SUPPORT_END}{after}"


def _backend_classes() -> dict[str, type[Backend]]:
    points = sorted(entry_points(group="ematix_flow.backends"), key=lambda p: p.name)
    ours = [p for p in points if p.value.startswith("ematix_flow.")]
    return {point.name: point.load() for point in ours}


def _any_connection(kind: str) -> Connection:
    fields: dict[str, Any] = {
        "mysql": {"url": "mysql://host/database"},
        "postgres": {"url": "postgres://host/database"},
        "object_store_local": {"path": "folder"},
    }.get(kind, {"path": "file"})
    return CONNECTION_CLASSES[kind](name="any", **fields)


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "cli.md": cli,
    REFERENCE / "connections.md": connections,
    REFERENCE / "types.md": column_types,
    REFERENCE / "pipeline.md": pipeline_options,
    REFERENCE / "errors.md": error_tree,
    REFERENCE / "settings.md": settings,
    REFERENCE / "support.md": support_page,
    ROOT / "README.md": readme,
}


def stale() -> list[Path]:
    """The pages that say something else than the code."""
    return [
        path
        for path, write in PAGES.items()
        if not path.exists() or path.read_text(encoding="utf-8") != write()
    ]


def main() -> int:
    changed = stale()
    for path in changed:
        print(f"{path.relative_to(ROOT)} is stale")
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PAGES[path](), encoding="utf-8")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
