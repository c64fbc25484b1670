"""Every example runs; the demo's numbers are recomputed from the CSV files in plain Python."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from ematix_flow.cli.main import main as flow
from quick_java import quick_java

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples"


def _copied(name: str, tmp_path: Path) -> Path:
    """The example in a folder of its own, without what earlier runs left beside it."""
    ignored = shutil.ignore_patterns("demo-data", "__pycache__")
    return Path(shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=ignored))


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.iterdir() if p.name != "demo"))
@pytest.mark.usefixtures("engine")
def test_example(name: str, tmp_path: Path) -> None:
    runpy.run_path(str(_copied(name, tmp_path) / f"{name}.py"), run_name="__main__")


def _run_demo(folder: Path) -> subprocess.CompletedProcess[str]:
    with quick_java():
        return subprocess.run(
            [sys.executable, str(folder / "demo.py")],
            cwd=folder.parent,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.mark.slow
def test_demo_from_nothing_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: object
) -> None:
    folder = _copied("demo", tmp_path)
    ran = _run_demo(folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "7 pipelines succeeded." in ran.stdout
    advice = ran.stdout.partition("what to try next")[2]
    assert "flow preview fact_sales" in advice
    assert _report(folder) == _expected_report(folder)

    # Again, as `flow run` in its folder; in this process, for the sake of time.
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    modules = dict(sys.modules)
    try:
        assert flow(["run"]) == 0
        for line in re.findall(r"^ *flow (.*)$", advice, re.MULTILINE):
            command, *chained = line.split(" && ")
            assert flow(shlex.split(command)) == 0, line
            if chained:
                assert chained[0] == "cd demo-data/my_project"
    finally:
        for name in set(sys.modules) & {"shop", "pipelines"} - set(modules):
            del sys.modules[name]
    assert _report(folder) == _expected_report(folder)


def test_demo_that_fails_says_so(tmp_path: Path) -> None:
    folder = _copied("demo", tmp_path)
    (folder / "demo-data").mkdir()
    (folder / "demo-data" / "lake").write_text("a file where a folder belongs")
    ran = _run_demo(folder)
    assert ran.returncode != 0
    assert "flow: error: " in ran.stderr
    assert "Traceback" not in ran.stderr


def _report(folder: Path) -> dict[tuple[str, str], tuple[int, int, Decimal]]:
    with closing(sqlite3.connect(folder / "demo-data" / "reports.db")) as database:
        rows = database.execute(
            "SELECT month, country, customers, items, revenue FROM sales_by_country"
        ).fetchall()
    return {(m, c): (people, items, Decimal(str(r))) for m, c, people, items, r in rows}


def _expected_report(folder: Path) -> dict[tuple[str, str], tuple[int, int, Decimal]]:
    def rows(name: str) -> list[dict[str, str]]:
        path = folder / "demo-data" / "shop" / f"{name}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            return [{k: v.strip() for k, v in row.items()} for row in csv.DictReader(file)]

    country = {int(c["customer_id"]): c["country"].upper() or "??" for c in rows("customers")}
    orders = {o["order_id"]: o for o in rows("orders") if o["status"].lower() != "cancelled"}
    people, items, revenue = defaultdict(set), defaultdict(int), defaultdict(Decimal)
    for item in rows("line_items"):
        order = orders.get(item["order_id"])
        if order is None:
            continue
        customer = int(order["customer_id"])
        month = datetime.fromisoformat(order["ordered_at"]).strftime("%Y-%m")
        key = (month, country[customer])
        left = 100 - Decimal(order["discount_percent"] or 0)
        amount = int(item["quantity"]) * Decimal(item["unit_price"]) * left / 100
        people[key].add(customer)
        items[key] += int(item["quantity"])
        revenue[key] += amount.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return {key: (len(people[key]), items[key], revenue[key]) for key in revenue}
