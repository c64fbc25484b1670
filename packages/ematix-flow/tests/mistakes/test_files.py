"""Mistakes in files and folders, as sources and as targets."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import duckdb
import pytest

from mistakes.conftest import Make
from mistakes.workshop import Failure, Mistake, Shop

Prepare = Callable[[Shop], object]

HEADER = "id,note,amount\n"


def from_files(connection: str, query: str, target: str = "warehouse") -> str:
    """A pipeline out of a folder of files."""
    return (
        f'@ematix.pipeline(target=Orders, target_connection="{target}", '
        f'source_connection="{connection}")\ndef load(conn):\n    return "{query}"\n'
    )


def from_csv(query: str = "SELECT * FROM `orders.csv`") -> str:
    """A pipeline out of CSV files."""
    return from_files("drop", query)


def into_lake(options: str = "") -> str:
    """A pipeline into a folder of Parquet files."""
    return (
        '@ematix.pipeline(target=Parcels, target_connection="lake", source_connection="source", '
        f'{options})\ndef load(conn):\n    return "SELECT id, note FROM orders"\n'
    )


def csv(content: str | bytes) -> Prepare:
    """The file that is dropped."""
    return lambda shop: shop.file("drop/orders.csv", content)


def parquet(change: Callable[[bytes], bytes]) -> Prepare:
    """A Parquet file to which something has happened."""

    def prepare(shop: Shop) -> None:
        path = shop.folder / "drop" / "orders.parquet"
        with duckdb.connect() as raw:
            raw.execute(
                "COPY (SELECT range AS id, 'n' AS note, 1.5::DECIMAL(8,2) AS amount "
                f"FROM range(20000)) TO '{path}'"
            )
        path.write_bytes(change(path.read_bytes()))

    return prepare


def folder_becomes_a_file(shop: Shop) -> None:
    """A file where the target's folder should be."""
    folder = shop.folder / "lake" / "shop" / "parcels"
    shutil.rmtree(folder)
    folder.write_text("a file\n")


def without_its_note(shop: Shop) -> None:
    """The target's one file, written again with a column less."""
    path = shop.folder / "lake" / "shop" / "parcels" / "old.parquet"
    with duckdb.connect() as raw:
        raw.execute(f"COPY (SELECT 1::BIGINT AS id) TO '{path}'")


MISTAKES = [
    Failure(
        "missing file",
        (
            "pipeline 'load'",
            "connection 'drop'",
            "no file or folder",
            "drop/ordres.csv",
            "there is",
        ),
        from_csv("SELECT * FROM `ordres.csv`"),
        prepare=csv(HEADER),
    ),
    Failure(
        "glob that matches nothing",
        ("pipeline 'load'", "connection 'drop'", "no file matches", "2026-*.csv", "there is"),
        from_csv("SELECT * FROM `2026-*.csv`"),
        prepare=csv(HEADER),
    ),
    Failure(
        "missing table of files",
        ("pipeline 'load'", "connection 'lake'", "no table shop.odrers", "there is: parcels"),
        from_files("lake", "SELECT * FROM shop.odrers"),
    ),
    Failure(
        "folder of files that does not exist",
        ("pipeline 'load'", "connection 'nowhere'", "there is no", "nothing"),
        'register_connection(ObjectStoreLocalConnection(name="nowhere", path="nothing"))\n'
        + from_files("nowhere", "SELECT * FROM shop.orders"),
    ),
    Failure(
        "folder without data files",
        ("pipeline 'load'", "connection 'drop'", "has no data files", "check the name"),
        from_csv("SELECT * FROM `empty`"),
        prepare=lambda shop: (shop.folder / "drop" / "empty").mkdir(),
    ),
    Failure(
        "corrupt Parquet footer",
        ("pipeline 'load'", "orders.parquet", "not a readable Parquet file", "replace"),
        from_files("lake", "SELECT * FROM `../drop/orders.parquet`"),
        prepare=parquet(lambda content: content[:-200]),
    ),
    Failure(
        "corrupt Parquet pages",
        ("pipeline 'load'", "orders.parquet", "cannot be read", "replace the file"),
        from_files("lake", "SELECT * FROM `../drop/orders.parquet`"),
        prepare=parquet(lambda content: content[:4] + b"\xff" * 400 + content[404:]),
    ),
    Failure(
        "text instead of Parquet",
        ("pipeline 'load'", "orders.parquet", "not a readable Parquet file", "replace"),
        from_files("lake", "SELECT * FROM `../drop/orders.parquet`"),
        prepare=parquet(lambda _: b"id,note\n1,x\n"),
    ),
    Failure(
        "truncated CSV",
        ("pipeline 'load'", "orders.csv", "record"),
        from_csv(),
        prepare=csv(HEADER + '3,x,1.50\n4,"yes'),
    ),
    Failure(
        "CSV record with too many fields",
        ("pipeline 'load'", "orders.csv", "record"),
        from_csv(),
        prepare=csv(HEADER + "3,x,1.50\n4,y,1.50,extra\n"),
    ),
    Failure(
        "CSV that lacks a column",
        ("pipelines.py:", "pipeline 'load' has no column 'amount'", "id, note"),
        from_csv(),
        prepare=csv("id,note\n3,x\n"),
    ),
    Failure(
        "CSV with two columns of one name",
        ("pipeline 'load'", "two columns", "'note'"),
        from_csv(),
        prepare=csv("id,note,note,amount\n3,x,y,1\n"),
    ),
    Failure(
        "empty CSV",
        ("pipeline 'load'", "orders.csv has no columns", "header"),
        from_csv(),
        prepare=csv(""),
    ),
    Failure(
        "CSV value that is no number",
        ("pipeline 'load'", "column 'amount'", "'dear'", "Numeric[8, 2]", "correct the rows"),
        from_csv(),
        prepare=csv(HEADER + "3,x,dear\n"),
    ),
    Failure(
        "CSV with an empty key",
        ("pipeline 'load'", "column 'id' is NULL in the source", "correct the rows"),
        from_csv(),
        prepare=csv(HEADER + ",x,1.50\n"),
    ),
    Failure(
        "CSV that is not UTF-8",
        ("pipeline 'load'", "orders.csv", "UTF-8"),
        from_csv(),
        prepare=csv(HEADER.encode() + "3,Käse,1.50\n".encode("latin-1")),
    ),
    Failure(
        "bad JSON line",
        ("pipeline 'load'", "orders.jsonl", "JSON"),
        from_files("feed", "SELECT * FROM `orders.jsonl`"),
        prepare=lambda shop: shop.file(
            "drop/orders.jsonl",
            '{"id": 3, "note": "x", "amount": 1.5}\n{"id": 4, "note": "y", "amou\n',
        ),
    ),
    Failure(
        "SQL that Spark cannot read",
        ("pipeline 'load'", "SQL", "correct the SQL"),
        from_csv("SELECT * FRM `orders.csv`"),
        prepare=csv(HEADER + "3,x,1.50\n"),
    ),
    Failure(
        "missing column in Spark SQL",
        ("pipeline 'load'", "names column 'nota'", "did you mean 'note'?"),
        from_csv("SELECT id, nota AS note, amount FROM `orders.csv`"),
        prepare=csv(HEADER + "3,x,1.50\n"),
    ),
    Failure(
        "file where the target's folder should be",
        (
            "pipeline 'load'",
            "connection 'lake'",
            "lake/shop/parcels is a file, not a folder",
            "move it",
        ),
        into_lake(),
        prepare=folder_becomes_a_file,
    ),
    Failure(
        "prefix that leads out of the folder",
        ("pipeline 'load'", "prefix='../..'", "leads out of the folder", "path below"),
        into_lake('prefix="../.."'),
    ),
    Failure(
        "files that drifted",
        ("lake/shop/parcels", "column 'note' is declared but does not exist", "change"),
        into_lake(),
        prepare=without_its_note,
    ),
    Failure(
        "manifest that is damaged",
        ("pipeline 'load'", "_ematix/000000000001.json is damaged", "restore it"),
        into_lake(),
        prepare=lambda shop: shop.file(
            "lake/shop/parcels/_ematix/000000000001.json", '{"version": '
        ),
    ),
    Failure(
        "statement over files",
        ("pipeline 'load'", "connection 'drop'", "runs no statements", "query()"),
        from_csv().replace('return "', 'conn.execute("DELETE FROM x")\n    return "'),
        code=2,
    ),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_files(mistake: Mistake, make: Make) -> None:
    make(mistake)
