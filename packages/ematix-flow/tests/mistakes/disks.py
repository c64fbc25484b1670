"""Runs pipelines on disks that are full or read-only, inside a mount namespace of its own.

``unshare --mount python disks.py FOLDER`` prints, as JSON, what ``flow`` said about each and
whether the target was left as it was. Nobody else sees the mounts, and they end with the process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.cli.main import main
from mistakes.workshop import Shop, furnish

MANY = "SELECT range AS id, sha256(range::VARCHAR) AS note FROM range(200000)"
MANY_IN_SQLITE = (
    "INSERT INTO many WITH RECURSIVE n(id) AS "
    "(SELECT 3 UNION ALL SELECT id + 1 FROM n WHERE id < 20000) "
    "SELECT id, hex(randomblob(20)) FROM n"
)
FEW = "SELECT 3 AS id, 'x' AS note"


@dataclass(frozen=True)
class Disk:
    """A pipeline into a target whose disk is full (of ``kilobytes``) or read-only (0)."""

    name: str
    declares: str
    says: tuple[str, ...]
    kilobytes: int = 0


def into(target: str, source: str, query: str) -> str:
    """A pipeline of these rows."""
    return (
        f'@ematix.pipeline(target=Parcels, target_connection="{target}", '
        f'source_connection="{source}")\ndef load(conn):\n    return "{query}"\n'
    )


FULL = ("full", "free some space")
LOCKED = ("cannot be written", "check the permissions")

DISKS = [
    Disk("full under DuckDB", into("warehouse", "warehouse", MANY), FULL, 3000),
    Disk("full under DuckDB, by Spark", into("warehouse", "elsewhere", MANY), FULL, 3000),
    Disk("full under SQLite", into("ledger", "ledger", "SELECT id, note FROM many"), FULL, 3500),
    Disk("full under files", into("lake", "elsewhere", MANY), FULL, 3000),
    Disk("read-only under DuckDB", into("warehouse", "warehouse", FEW), LOCKED),
    Disk("read-only under SQLite", into("ledger", "ledger", "SELECT id, note FROM few"), LOCKED),
    Disk(
        "read-only under files",
        into("lake", "elsewhere", FEW),
        ("lake/shop/parcels", "read-only file system", "accessible"),
    ),
]
ELSEWHERE = 'register_connection(DuckDBConnection(name="elsewhere", path="{path}"))\n'


def attempt(disk: Disk, folder: Path) -> dict[str, Any]:
    """Run one pipeline and look at what it said and left."""
    shop = folder / "shop"
    shop.mkdir(parents=True)
    size = f"size={disk.kilobytes or 8000}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(shop)], check=True)
    made = folder / "made"
    made.mkdir()
    furnish(made)
    shutil.copytree(made, shop, dirs_exist_ok=True)
    opened = Shop(shop, pytest.MonkeyPatch())
    os.chdir(shop)
    opened.declare(ELSEWHERE.format(path=folder / "elsewhere.duckdb") + disk.declares)
    opened.sqlite(
        "CREATE TABLE few (id BIGINT, note TEXT)", "CREATE TABLE many (id BIGINT, note TEXT)"
    )
    if "FROM many" in disk.declares:
        opened.sqlite(MANY_IN_SQLITE)
    before = opened.targets()
    if not disk.kilobytes:
        subprocess.run(["mount", "-o", "remount,ro", str(shop)], check=True)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(["run", "load"])
    return {"code": code, "err": said.getvalue(), "untouched": opened.targets() == before}


def run_all(folder: Path) -> None:
    """Attempt every disk, one after the other."""
    results = {}
    for number, disk in enumerate(DISKS):
        results[disk.name] = attempt(disk, folder / str(number))
    print(json.dumps(results))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
