"""TPC-H on real workers: official data, 22 queries as pipelines, every answer checked.

Every answer must be what DuckDB makes of the same text and the same files. At scale factor 1 it
must also be the one that DuckDB's `tpch` extension carries, made from data and text of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

Rows = list[tuple[Any, ...]]

HERE = Path(__file__).parent
PROJECT = HERE / "tpch_project"
NAMES = tuple(sorted(path.stem for path in (PROJECT / "queries").iterdir()))
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
# The newest build of the extension that the package registry has.
EXTENSION = ("duckdb==1.5.5", "duckdb-extension-tpch==1.5.5")
ASK = """
import duckdb, json, pathlib
import duckdb_extension_tpch as package

database = duckdb.connect()
(file,) = pathlib.Path(package.__file__).parent.rglob("tpch.duckdb_extension")
database.execute(f"LOAD '{file}'")
asked = "SELECT query_nr, answer FROM tpch_answers() WHERE scale_factor = 1"
print(json.dumps(dict(database.execute(asked).fetchall())))
"""
# The generator of the extension makes up other addresses and comments than the official one does,
# and q13 counts words in comments; of all else it gives the official values.
MADE_UP = {"q02": (5, 7), "q10": (5, 7), "q15": (2,), "q20": (1,)}
UNKNOWN = ("q13",)
# Sums and counts are exact. Averages and quotients are, in Spark, decimals of six places and more.
NEAR = 1e-4


def make_data(folder: Path, *, scale: float, parts: int) -> None:
    """The eight tables, each a folder of Parquet files."""
    program = str(Path(sys.executable).with_name("tpchgen-cli"))
    where = ("--output-dir", str(folder), "--parts", str(parts), "--quiet")
    subprocess.run([program, "parquet", "--scale-factor", str(scale), *where], check=True)


def make_project(folder: Path, data: Path, **settings: Any) -> None:
    """A project beside which the pipelines stay as they are; settings go into its `[project]`."""
    folder.mkdir()
    lines = [
        "[project]",
        f"modules = [{json.dumps(str(PROJECT / 'pipelines.py'))}]",
        *(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        "[connections.lake]",
        'kind = "object_store_local"',
        f"path = {json.dumps(str(data))}",
        "shared = true",
        "[connections.answers]",
        'kind = "duckdb"',
        'path = "answers.duckdb"',
    ]
    (folder / ".ematix-flow.toml").write_text("\n".join(lines) + "\n")


def flow_run(folder: Path, names: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    """What `flow run` tells of these pipelines; all must succeed."""
    flow = str(Path(sys.executable).with_name("flow"))
    command = [flow, "run", *names, "--format", "json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode() + done.stdout.decode())
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def loaded(folder: Path, name: str) -> Rows:
    """The rows that a pipeline has left."""
    import duckdb

    with duckdb.connect(str(folder / "answers.duckdb"), read_only=True) as database:
        # What every load adds to its rows is no part of the answer.
        sql = f"SELECT * EXCLUDE (_run_id, _loaded_at) FROM tpch.{name}"  # noqa: S608
        return database.execute(sql).fetchall()


def by_duckdb(data: Path, name: str) -> Rows:
    """What DuckDB makes of the same text and the same files."""
    import duckdb

    with duckdb.connect() as database:
        for table in TABLES:
            files = f"{data}/{table}/*.parquet"
            database.execute(f"CREATE VIEW {table} AS SELECT * FROM '{files}'")  # noqa: S608
        return database.execute((PROJECT / "queries" / f"{name}.sql").read_text()).fetchall()


def carried() -> dict[str, Rows]:
    """The answers of the extension at scale factor 1; asked in an environment of its own."""
    home = HERE.parent / ".cache" / "bench" / "tpch"
    python = home / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", str(home)], check=True)
        subprocess.run(
            [uv, "pip", "install", "-q", "--python", str(python), *EXTENSION], check=True
        )
    told = subprocess.run([str(python), "-c", ASK], stdout=subprocess.PIPE, check=True).stdout
    answers = {f"q{int(number):02d}": text for number, text in json.loads(told).items()}
    return {
        name: [tuple(line.split("|")) for line in text.splitlines()[1:]]
        for name, text in answers.items()
        if name not in UNKNOWN
    }


def comparable(name: str, rows: Rows) -> Rows:
    """The columns in which the extension has the official values."""
    made_up = MADE_UP.get(name, ())
    return [tuple(v for at, v in enumerate(row) if at not in made_up) for row in rows]


def difference(ours: Rows, wanted: Rows) -> str | None:
    """Where two answers differ, in any order of the rows; None where they do not."""
    if len(ours) != len(wanted):
        return f"{len(ours)} rows instead of {len(wanted)}"
    # What is a number with a fraction does not tell a row from another in any of these answers.
    first = ours[0] if ours else ()
    keys = [at for at, value in enumerate(first) if not isinstance(value, Decimal | float)]

    def key(row: tuple[Any, ...]) -> list[str]:
        return [str(row[at]) for at in keys]

    for here, there in zip(sorted(ours, key=key), sorted(wanted, key=key), strict=True):
        if len(here) != len(there):
            return f"{len(here)} columns instead of {len(there)}"
        for value, other in zip(here, there, strict=True):
            if not _equal(value, other):
                return f"{value!r} instead of {other!r} in {here!r}"
    return None


def _equal(ours: Any, wanted: Any) -> bool:
    if isinstance(ours, float):
        return abs(ours - float(wanted)) <= NEAR * max(abs(ours), 1.0)
    if isinstance(ours, Decimal):
        return ours == Decimal(str(wanted))
    return str(ours) == str(wanted)


def wrong(folder: Path, data: Path, *, scale: float) -> dict[str, str]:
    """Of all pipelines that have run there, those with a wrong answer, and what is wrong."""
    known = carried() if scale == 1 else {}
    found = {}
    for name in NAMES:
        rows = loaded(folder, name)
        told = difference(rows, by_duckdb(data, name))
        if told is None and name in known:
            told = difference(comparable(name, rows), comparable(name, known[name]))
        if told is not None:
            found[name] = told
    return found


def main() -> int:
    from machines import Authority, workers
    from measure import Bar, report

    scale = float(os.environ.get("BENCH_SCALE", "1"))
    bars, taken = [], {}
    with tempfile.TemporaryDirectory(prefix="ematix-bench-") as name:
        home = Path(name)
        make_data(home / "lake", scale=scale, parts=4)
        with workers(home / "workers", Authority(home / "authority"), 2) as crew:
            for where, variables in {
                "this machine": {"EMATIX_FLOW_ENGINE": "local"},
                "2 workers": crew.variables,
            }.items():
                folder = home / where.replace(" ", "-")
                make_project(folder, home / "lake")
                env = {**os.environ, **variables, "EMATIX_FLOW_HOME": str(folder)}
                told = flow_run(folder, NAMES, env)
                for ran in told["ran"]:
                    taken[f"{ran['pipeline']}: {where}"] = [float(ran["seconds"])]
                bad = wrong(folder, home / "lake", scale=scale)
                print(where, bad or "all answers are right")
                what = f"wrong answers of {len(NAMES)} at scale factor {scale:g}, {where}"
                bars.append(Bar(what, len(bad) / len(NAMES), 0.0))
    return report("tpch", bars=bars, taken=taken, packages=("ematix-flow", "pyspark", "duckdb"))


if __name__ == "__main__":
    sys.exit(main())
