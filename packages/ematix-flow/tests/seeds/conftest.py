"""Runs the documented snippets as a user does: a module of their own, a real PostgreSQL behind."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from ematix_flow.cli.main import main

RAW = """
CREATE SCHEMA raw;
CREATE TABLE raw.events (event_id bigint, name text, received_at timestamptz);
INSERT INTO raw.events VALUES
    (1, 'opened', '2026-01-01 10:00:00+00'),
    (2, NULL, '2026-01-01 10:05:00.123456+02'),
    (3, '日本 🎉', '2026-01-01 10:10:00-05');
CREATE TABLE raw.customers (customer_id bigint, email text, name text, updated_at text);
INSERT INTO raw.customers VALUES
    (1, '  Ann@Example.ORG ', 'Ann', '2026-01-01 10:00:00'),
    (2, '   ', NULL, '2026-01-02 11:30:00');
CREATE TABLE public.customers AS SELECT * FROM raw.customers;
"""


@dataclass(frozen=True)
class Database:
    """A PostgreSQL database of the test's own."""

    url: str

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query, read by psycopg alone."""
        with psycopg.connect(self.url, options="-c TimeZone=UTC") as connection:
            return connection.execute(sql).fetchall()

    @property
    def without_scheme(self) -> str:
        return self.url.partition("://")[2]


@pytest.fixture
def database(postgres: Any) -> Iterator[Database]:
    """A database with the raw tables that the snippets read."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute(RAW)
    yield Database(url)
    postgres.drop_database(url.rpartition("/")[2])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and nothing of the user's own connections."""
    for name in list(os.environ):
        if name.startswith("EMATIX_FLOW_DSN"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


Snippet = Callable[..., ModuleType]


@pytest.fixture
def my_pipelines(folder: Path) -> Iterator[Snippet]:
    """Writes a snippet, after its preamble, to ``my_pipelines.py`` and imports it."""

    def write(*parts: str) -> ModuleType:
        (folder / "my_pipelines.py").write_text("\n".join(parts), encoding="utf-8")
        sys.modules.pop("my_pipelines", None)
        importlib.invalidate_caches()
        return importlib.import_module("my_pipelines")

    yield write
    sys.modules.pop("my_pipelines", None)


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def flow(capsys: pytest.CaptureFixture[str]) -> Callable[[str], Said]:
    """Runs a command line as it is documented."""

    def call(line: str) -> Said:
        capsys.readouterr()
        program, *arguments = line.split()
        assert program == "flow"
        code = main(arguments)
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call
