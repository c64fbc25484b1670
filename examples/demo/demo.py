"""`make demo`: an untidy shop export becomes a report, by way of three steps on embedded Spark.

All it does is `flow run` in this folder and a look at the results. Run it as often as you like.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import shop
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table

from ematix_flow import connect
from ematix_flow.cli.main import main as flow

HERE = Path(__file__).resolve().parent
console = Console(highlight=False)

STEPS = {
    "lake": ("clean.customers", "clean.orders", "clean.line_items"),
    "warehouse": ("star.dim_customer", "star.dim_product", "star.fact_sales"),
    "reports": ("sales_by_country",),
}
LOOKS = (
    (
        "lake",
        "clean.customers: what the columns declare has cleaned them (Parquet)",
        "SELECT customer_id, name, email, phone, country, signed_up, newsletter"
        " FROM clean.customers ORDER BY customer_id, name LIMIT 4",
    ),
    (
        "warehouse",
        "star.fact_sales: the five largest sales (DuckDB)",
        "SELECT f.order_id, f.sold_on, c.name, f.product, f.quantity, f.amount"
        " FROM star.fact_sales f JOIN star.dim_customer c USING (customer_id)"
        " ORDER BY f.amount DESC, f.order_id, f.line_number LIMIT 5",
    ),
    (
        "reports",
        "sales_by_country: the report for January (SQLite)",
        "SELECT month, country, customers, items, revenue FROM sales_by_country"
        " WHERE month = '2026-01' ORDER BY country",
    ),
)


def main() -> int:
    os.chdir(HERE)
    console.print(
        Panel(
            "CSV → clean Parquet → DuckDB star schema → SQLite report\n"
            f"[dim]Pipelines: examples/demo/pipelines.py   Data: {escape(_shown(HERE))}/demo-data[/]",
            title="ematix-flow demo",
            border_style="cyan",
        )
    )
    _show_raw_files()
    console.print(Rule("flow run", style="cyan"))
    console.print("[dim]Spark starts inside this process; the first start takes longest.[/]")
    code = flow(["run"])
    if code:
        console.print("[red]The demo failed.[/] See: flow doctor")
        return code
    console.print(Rule("results", style="cyan"))
    for connection, title, sql in LOOKS:
        console.print(_table(title, _query(connection, sql)))
    console.print(_row_counts())
    console.print(Rule("flow runs list", style="cyan"))
    code = flow(["runs", "list", "--limit", "7"])
    console.print(_what_next())
    return code


def _show_raw_files() -> None:
    folder = shop.export()
    console.print(Rule("the shop's export", style="cyan"))
    for path in sorted(folder.glob("*.csv")):
        lines = path.read_text(encoding="utf-8").splitlines()
        console.print(f"[bold]{path.name}[/] [dim]{len(lines) - 1} rows[/]")
        for line in lines[:4]:
            console.print(f"  [dim]{escape(line)}[/]", no_wrap=True, overflow="ellipsis")


def _query(connection: str, sql: str) -> list[dict[str, Any]]:
    with connect(connection) as live:
        return live.query(sql)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="cyan")
    for name, value in rows[0].items():
        number = not isinstance(value, str | bool) and hasattr(value, "__add__")
        table.add_column(name, justify="right" if number and "_on" not in name else "left")
    for row in rows:
        table.add_row(*("[dim]NULL[/]" if v is None else escape(str(v)) for v in row.values()))
    return table


def _row_counts() -> Table:
    found = []
    for connection, names in STEPS.items():
        for name in names:
            count = _query(connection, f"SELECT count(*) AS n FROM {name}")[0]["n"]
            found.append({"connection": connection, "table": name, "rows": count})
    return _table("row counts", found)


def _what_next() -> Panel:
    lines = (
        f"cd {_shown(HERE)}",
        f'export PATH="{_shown(Path(sys.executable).parent)}:$PATH"',
        "flow list",
        "flow preview fact_sales",
        "flow dry-run clean_customers",
        "flow run sales_by_country --format json",
        "flow status",
        "flow init my_project && cd my_project && flow run",
    )
    return Panel(
        "\n".join(escape(line) for line in lines),
        title="what to try next",
        title_align="left",
        border_style="green",
    )


def _shown(path: Path) -> str:
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
