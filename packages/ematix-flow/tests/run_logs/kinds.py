"""Every kind of run log, as the shared tests see it; a new kind is one more line in ``KINDS``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from ematix_flow.connections import build_connection
from ematix_flow.model import BOOKKEEPING_SCHEMA
from ematix_flow.run.buckets import BucketUrl, open_bucket
from ematix_flow.run.database_log import DatabaseRunLog
from ematix_flow.run.log import MemoryRunLog, RunLog
from ematix_flow.run.object_log import ObjectRunLog
from ematix_flow.run.records import utc_now
from ematix_flow.run.sqlite_log import SqliteRunLog

OpenLog = Callable[[], RunLog]


@dataclass(frozen=True)
class Place:
    """Makes empty logs, one after the other; each opens again and again as the same."""

    kind: str
    fresh: Callable[[], OpenLog]
    examples: int


class MemoryBucket:
    """A bucket that counts what is asked of it."""

    def __init__(self) -> None:
        self.url = BucketUrl(store="memory", bucket="test", prefix="")
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.asked: list[str] = []
        self._tags = itertools.count()

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        self.asked.append("put")
        held = self.objects.get(key)
        if (if_absent and held) or (if_match and (held is None or held[1] != if_match)):
            return None
        tag = f"tag {next(self._tags)}"
        self.objects[key] = data, tag
        return tag

    def get(self, key: str) -> bytes | None:
        found = self.get_tagged(key)
        return None if found is None else found[0]

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        self.asked.append("get")
        return self.objects.get(key)

    def list(self, prefix: str, *, after: str = "", page: int = 1000) -> Iterator[str]:
        keys = sorted(k for k in tuple(self.objects) if k.startswith(prefix) and k > after)
        for start in range(0, max(len(keys), 1), page):
            self.asked.append("list")
            yield from keys[start : start + page]

    def delete(self, key: str) -> None:
        self.asked.append("delete")
        self.objects.pop(key, None)

    def clock(self) -> datetime:
        return utc_now()

    def close(self) -> None:
        """Nothing is open."""


def _memory(_: pytest.FixtureRequest, __: Path) -> Callable[[], OpenLog]:
    def fresh() -> OpenLog:
        held = MemoryRunLog()
        return lambda: held

    return fresh


def _sqlite(_: pytest.FixtureRequest, folder: Path) -> Callable[[], OpenLog]:
    numbers = itertools.count()

    def fresh() -> OpenLog:
        path = folder / f"log-{next(numbers)}.db"
        return lambda: SqliteRunLog(path)

    return fresh


def _bucket(_: pytest.FixtureRequest, __: Path) -> Callable[[], OpenLog]:
    def fresh() -> OpenLog:
        held = MemoryBucket()
        return lambda: ObjectRunLog(held)

    return fresh


def url_of(request: pytest.FixtureRequest, kind: str) -> str:
    """The URL of an empty bucket on a real server, its credentials where clients look for them."""
    server = request.getfixturevalue(kind)
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    if kind == "azurite":
        return f"azure://{server.account}/{server.create_container()}/logs?endpoint={server.url}"
    scheme = {"s3": "s3", "gcs": "gs"}[kind]
    return f"{scheme}://{server.create_bucket()}/logs?endpoint={server.url}"


def _store(kind: str) -> Callable[[pytest.FixtureRequest, Path], Callable[[], OpenLog]]:
    def place(request: pytest.FixtureRequest, _: Path) -> Callable[[], OpenLog]:
        url = url_of(request, kind)
        numbers = itertools.count()

        def fresh() -> OpenLog:
            one = url.replace("/logs", f"/logs/{next(numbers)}")
            return lambda: ObjectRunLog(open_bucket(one))

        return fresh

    return place


def _postgres(request: pytest.FixtureRequest, _: Path) -> Callable[[], OpenLog]:
    server = request.getfixturevalue("postgres")

    def fresh() -> OpenLog:
        connection = build_connection("log", {"url": server.create_database()})
        return lambda: DatabaseRunLog(connection)

    return fresh


def _mysql(kind: str) -> Callable[[pytest.FixtureRequest, Path], Callable[[], OpenLog]]:
    """There a schema is a database of the whole server, so that all share one log."""

    def place(request: pytest.FixtureRequest, _: Path) -> Callable[[], OpenLog]:
        server = request.getfixturevalue(kind)
        connection = build_connection("log", {"url": server.url})

        def fresh() -> OpenLog:
            DatabaseRunLog(connection).close()
            for table in ("log_runs", "log_pipelines"):
                server.execute(f"DELETE FROM {BOOKKEEPING_SCHEMA}.{table}")
            return lambda: DatabaseRunLog(connection)

        return fresh

    return place


def _duckdb(_: pytest.FixtureRequest, folder: Path) -> Callable[[], OpenLog]:
    numbers = itertools.count()

    def fresh() -> OpenLog:
        url = f"duckdb://{folder}/log-{next(numbers)}.duckdb"
        connection = build_connection("log", {"url": url})
        return lambda: DatabaseRunLog(connection)

    return fresh


# What makes the place of a log, how many random histories it is tried with, the servers it needs.
KINDS: dict[str, tuple[Callable[..., Callable[[], OpenLog]], int, tuple[str, ...]]] = {
    "memory": (_memory, 100, ()),
    "sqlite": (_sqlite, 40, ()),
    "duckdb": (_duckdb, 4, ()),
    "postgres": (_postgres, 8, ("postgres",)),
    "mysql": (_mysql("mysql"), 8, ("mysql",)),
    "mariadb": (_mysql("mariadb"), 8, ("mariadb",)),
    "bucket in memory": (_bucket, 100, ()),
    "s3": (_store("s3"), 8, ("s3",)),
    "gcs": (_store("gcs"), 8, ("gcs",)),
    "azurite": (_store("azurite"), 8, ("azurite",)),
}
PARAMETERS = [
    pytest.param(kind, marks=pytest.mark.services(*servers) if servers else ())
    for kind, (_, _, servers) in KINDS.items()
]
