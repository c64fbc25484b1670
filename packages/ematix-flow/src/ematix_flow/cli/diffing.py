"""``flow diff`` and ``flow why``: how two tables differ, and where a row comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ematix_flow.cli.connections import load_declared
from ematix_flow.cli.options import (
    common_options,
    engine_option,
    examples,
    module_option,
    run_log_options,
)
from ematix_flow.cli.output import counted, say, say_json, when
from ematix_flow.errors import EmatixError

if TYPE_CHECKING:
    from datetime import datetime

    from ematix_flow.run.diff_result import TableDiff
    from ematix_flow.run.log import RunLog
    from ematix_flow.run.provenance import Provenance, WritingRun

_MISTAKE = 2


@click.command(
    epilog=examples(
        "flow diff warehouse:shop.orders lake:shop.orders",
        "flow diff load_orders crm:public.orders --key order_id --limit 5",
        "flow diff lake:old/*.csv lake:new/*.csv --key id --format json",
    )
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--key", metavar="COLUMN,…", help="The key; by default the primary key of both.")
@click.option("--columns", metavar="COLUMN,…", help="Compare only these; by default all of both.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Rows to show of each kind; counts are exact.",
)
@click.option(
    "--with-bookkeeping", is_flag=True, help="Compare _run_id and _loaded_at like other columns."
)
@engine_option
@module_option
@common_options
def diff(
    *,
    a: str,
    b: str,
    key: str | None,
    columns: str | None,
    limit: int,
    with_bookkeeping: bool,
    modules: tuple[str, ...],
    output: str,
) -> int:
    """Compare two tables by key, on any two connections.

    A and B are connection:schema.table, connection:path for files, or a pipeline's name, which
    stands for its target. Exit code 0 when they are equal, 1 when they differ, 2 when they
    cannot be compared.
    """
    from ematix_flow.run.diff import diff_tables

    _load(modules, a, b)
    try:
        found = diff_tables(
            a,
            b,
            key=_names(key),
            columns=_names(columns),
            limit=limit,
            with_bookkeeping=with_bookkeeping,
        )
    except EmatixError as error:
        # 1 says that the tables differ, and that is not known.
        error.exit_code = _MISTAKE
        raise
    if output == "json":
        say_json(found.to_dict())
    else:
        _show(found)
    return 0 if found.equal else 1


def _load(modules: tuple[str, ...], *tables: str) -> None:
    project = load_declared(modules)
    if project is not None and project.registry.load_failures:
        for name in tables:
            if ":" not in name:
                # It may stand below the line at which its module failed to load.
                project.pipeline(name)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _show(found: TableDiff) -> None:
    say(f"a    {found.a}: {counted(found.rows_a, 'row')}")
    say(f"b    {found.b}: {counted(found.rows_b, 'row')}")
    compared = counted(len(found.columns), "other column")
    say(f"key  {', '.join(found.key)}; {compared} compared")
    for side, columns in (("a", found.columns_only_in_a), ("b", found.columns_only_in_b)):
        if columns:
            say(f"columns only in {side}: {', '.join(columns)}")
    for kind in found.types:
        say(
            f"note: {kind.column} is {kind.a} in a and {kind.b} in b, compared as "
            f"{kind.compared_as}"
        )
    if found.equal:
        say("equal")
        return
    _show_rows("a", found.only_in_a, found.sample_only_in_a, found.key)
    _show_rows("b", found.only_in_b, found.sample_only_in_b, found.key)
    if found.different:
        by_column = ", ".join(f"{name} {n:,}" for name, n in found.different_columns.items())
        say(f"\ndifferent: {counted(found.different, 'row')} ({by_column})")
        for row in found.sample_different:
            changes = ", ".join(
                f"{name}: {_value(old)} → {_value(new)}" for name, (old, new) in row.values.items()
            )
            say(f"  {_pairs(row.key)}  {changes}")
        _show_rest(found.different, len(found.sample_different))


def _show_rows(
    side: str, count: int, sample: tuple[Mapping[str, Any], ...], key: tuple[str, ...]
) -> None:
    if not count:
        return
    say(f"\nonly in {side}: {counted(count, 'row')}")
    for row in sample:
        rest = {name: value for name, value in row.items() if name not in key}
        say(f"  {_pairs({name: row[name] for name in key})}  {_pairs(rest)}".rstrip())
    _show_rest(count, len(sample))


def _show_rest(count: int, shown: int) -> None:
    if count > shown:
        say(f"  … and {count - shown:,} more")


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@click.command(
    epilog=examples(
        "flow why warehouse:shop.orders 42",
        "flow why load_orders order_id=42",
        "flow why warehouse:shop.items order_id=42 line=1 --format json",
    )
)
@click.argument("table", metavar="TABLE")
@click.argument("key", nargs=-1, required=True, metavar="COLUMN=VALUE...|VALUE")
@module_option
@run_log_options
@common_options
def why(
    *,
    table: str,
    key: tuple[str, ...],
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    output: str,
) -> None:
    """Tell which runs wrote each version of a row, and from which source.

    TABLE is connection:schema.table or a pipeline's name. The value alone is enough where the
    key is one column. Exit code 1 when there is no such row.
    """
    from ematix_flow.run.provenance import row_provenance

    _load(modules, table)
    found = row_provenance(table, key, run_log=run_log())
    if output == "json":
        say_json(found.to_dict())
    else:
        _explain(found)


def _explain(found: Provenance) -> None:
    say(f"{found.table} {_pairs(found.key)}: {counted(len(found.versions), 'row')}")
    if found.note:
        say(f"note: {found.note}")
        for run in found.runs:
            say()
            _show_run(run)
        if found.runs:
            say("\nthese runs wrote to the table; each may have written the row")
        return
    for version in found.versions:
        say()
        if version.period is not None:
            start, end = version.period
            say(f"  valid     from {_moment(start)} to {_moment(end) if end else 'now'}")
        opener, writer = version.opened_by, version.run
        if opener is not None and writer is not None and opener != writer:
            say("  opened by")
            _show_run(opener)
            say("  closed by")
        elif version.loaded_at is not None:
            say(f"  written   {_moment(version.loaded_at)}")
        if writer is None:
            say("  run       not recorded in the row")
        else:
            _show_run(writer)


def _show_run(run: WritingRun) -> None:
    say(f"  run       {run.run_id}")
    if run.pipeline:
        mode = f" (mode {run.mode})" if run.mode else ""
        say(f"  pipeline  {run.pipeline}{mode}")
    if run.started_at:
        by = f", started by {run.trigger}" if run.trigger else ""
        say(f"  started   {when(run.started_at)}{by}")
    if run.source:
        say("  source    " + "\n            ".join(run.source.splitlines()))
    elif run.recorded_in == "run log":
        say("  source    not recorded by the version that ran it")
    else:
        say("  source    not known: the run is not in this run log")


def _moment(value: datetime | str) -> str:
    return value if isinstance(value, str) else when(value)
