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
STARTED_IN = Path.cwd()
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
        "star.fact_sales with star.dim_customer: the five best customers (DuckDB)",
        "SELECT c.name, c.country, count(DISTINCT f.order_id) AS orders, sum(f.amount) AS revenue"
        " FROM star.fact_sales f JOIN star.dim_customer c USING (customer_id)"
        " GROUP BY ALL ORDER BY revenue DESC, c.name LIMIT 5",
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
            f"[dim]pipelines  {escape(_shown(HERE / 'pipelines.py'))}\n"
            f"data       {escape(_shown(HERE / 'demo-data'))}[/]",
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
    console.print(Rule("what to try next", style="green"))
    for line in _what_next():
        console.print(f"  {escape(line)}", soft_wrap=True)
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
        number = str(value).replace(".", "", 1).isdecimal()
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*("[dim]NULL[/]" if v is None else escape(str(v)) for v in row.values()))
    return table


def _row_counts() -> Table:
    found = []
    for connection, names in STEPS.items():
        for name in names:
            count = _query(connection, f"SELECT count(*) AS n FROM {name}")[0]["n"]  # noqa: S608 - ours
            found.append({"connection": connection, "table": name, "rows": count})
    return _table("row counts", found)


def _what_next() -> list[str]:
    tools = Path(sys.executable).parent
    activate = tools / "activate"
    reach = f"source {_shown(activate)}" if activate.exists() else f'export PATH="{tools}:$PATH"'
    return [
        reach,
        f"cd {_shown(HERE)}",
        "flow list",
        "flow preview fact_sales",
        "flow dry-run clean_customers",
        "flow run sales_by_country --format json",
        "flow status",
        "flow init demo-data/my_project && cd demo-data/my_project && flow run",
    ]


def _shown(path: Path) -> str:
    """The path as it can be typed where the demo was started."""
    return os.path.relpath(path, STARTED_IN) if path.is_relative_to(STARTED_IN) else str(path)


if __name__ == "__main__":
    sys.exit(main())
