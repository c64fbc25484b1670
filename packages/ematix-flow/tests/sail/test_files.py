"""Plain files give the same rows on both engines, or are refused by both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

UTC = timezone.utc
CSV = {
    "usual": "a,b\n1,x\n2,y\n",
    "unended": "a,b\n1,x",
    "windows": "a,b\r\n1,x\r\n",
    "spaces": "a,b\n 1 ,\tx \n",
    "empty_lines": "a,b\n\n1,x\n\n",
    "nothing": "a,b\n,\n,x\n",
    "header_only": "a,b\n",
    "too_few": "a,b\n1\n",
    "too_many": "a,b\n1,2,3\n",
    "marks": "a,b\n'1',#\\\n\\N,null\n",
    "letters": "a,b\né👍,\u2028\n",
}
PROGRAM = """
import json, sys
from pathlib import Path
from ematix_flow import Text, connect, ematix
from ematix_flow.errors import DataError, EmatixError


@ematix.connection
class files:
    kind = "object_store_local"
    path = "."
    format = "csv"


@ematix.connection
class target:
    kind = "duckdb"
    path = sys.argv[1]


@ematix.table(name="texts")
class Texts:
    a: Text | None
    b: Text | None


@ematix.table(name="copied")
class Copied:
    small: ematix_flow.SmallInt | None
    whole: ematix_flow.Integer | None
    big: ematix_flow.BigInt | None
    single: ematix_flow.Float | None
    double: ematix_flow.Double | None
    exact: ematix_flow.Numeric[20, 4] | None
    flag: ematix_flow.Boolean | None
    words: Text | None
    day: ematix_flow.Date | None
    naive: ematix_flow.Timestamp | None
    instant: ematix_flow.TimestampTZ | None
    raw: ematix_flow.Bytes | None


found = {}
for file in sorted([*Path(".").glob("*.csv"), Path("all.parquet"), Path("damaged.parquet")]):
    table = Texts if file.suffix == ".csv" else Copied

    @ematix.pipeline(target=table, name=file.stem, source_connection="files",
                     source_table=file.name, target_connection="target", mode="truncate",
                     allow_empty=True)
    def load():
        pass

    try:
        told = load.preview()
        load.sync()
        rows = connect("target").query(f"SELECT * EXCLUDE (_run_id, _loaded_at) FROM {told.target}")
        found[file.name] = told.engine, sorted(repr(tuple(row.values())) for row in rows)
    except EmatixError as error:
        found[file.name] = told.engine, "refused"
print(json.dumps(found))
"""


def _loaded(folder: Path, engine: str) -> dict[str, tuple[str, object]]:
    ended = subprocess.run(
        [sys.executable, "-c", f"import ematix_flow\n{PROGRAM}", f"{engine}.duckdb"],
        cwd=folder,
        env={**os.environ, "EMATIX_FLOW_ENGINE": engine},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return {name: (one, rows) for name, (one, rows) in json.loads(ended.stdout).items()}


def _table() -> pa.Table:
    columns = {
        "small": pa.array([-32768, 32767, None], pa.int16()),
        "whole": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "big": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "single": pa.array([0.1, float("inf"), None], pa.float32()),
        "double": pa.array([0.1, float("nan"), None], pa.float64()),
        "exact": pa.array([Decimal("0.0001"), Decimal("-1234567890123456.5"), None]).cast(
            pa.decimal128(20, 4)
        ),
        "flag": pa.array([True, False, None]),
        "words": pa.array(["", "é👍\n", None]),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None], pa.date32()),
        "naive": pa.array(
            [datetime(1582, 10, 4, 1), datetime(9999, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")
        ),
        "instant": pa.array(
            [
                datetime(1900, 1, 1, tzinfo=timezone.utc),
                datetime(2024, 1, 1, tzinfo=timezone.utc),
                None,
            ],
            pa.timestamp("us", tz="UTC"),
        ),
        "raw": pa.array([b"", b"\x00\xff", None]),
    }
    return pa.table(columns)


@pytest.mark.slow
def test_plain_files_are_read_alike(tmp_path: Path) -> None:
    for name, text in CSV.items():
        (tmp_path / f"{name}.csv").write_bytes(text.encode())
    pq.write_table(_table(), tmp_path / "all.parquet", write_page_checksum=True)
    damaged = bytearray((tmp_path / "all.parquet").read_bytes())
    place = damaged.index("é👍".encode())
    damaged[place] ^= 1
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    ours, theirs = _loaded(tmp_path, "local"), _loaded(tmp_path, "sail")
    assert {engine for engine, _ in ours.values()} == {"spark"}
    assert {engine for engine, _ in theirs.values()} == {"sail"}
    assert {name: rows for name, (_, rows) in theirs.items()} == {
        name: rows for name, (_, rows) in ours.items()
    }
    assert ours["all.parquet"][1] != "refused"
    assert {name for name, (_, rows) in ours.items() if rows == "refused"} == {
        *("damaged.parquet", "too_few.csv", "too_many.csv")
    }
