"""A furnished shop per test; the furnishing itself is done once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mistakes.workshop import Mistake, Said, Shop, assert_one_line, furnish, furnish_postgres

Make = Callable[[Mistake], None]


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that every shop is a copy of."""
    folder = tmp_path_factory.mktemp("shop") / "template"
    folder.mkdir()
    furnish(folder)
    return folder


@pytest.fixture
def shop(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop of its own, in the working folder."""
    for name in list(os.environ):
        if name.startswith("EMATIX_FLOW_") and name != "EMATIX_FLOW_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "home"))
    folder = tmp_path / "shop"
    shutil.copytree(furnished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    opened = Shop(folder, monkeypatch)
    with opened.cleanup:
        yield opened


@pytest.fixture
def postgres_shop(shop: Shop, postgres: object) -> Shop:
    """The same with a Postgres database behind the connection ``pg``."""
    url: str = postgres.create_database()  # type: ignore[attr-defined]
    shop.cleanup.callback(postgres.drop_database, url.rsplit("/", 1)[1])  # type: ignore[attr-defined]
    furnish_postgres(url)
    shop.postgres_url = url
    shop.monkeypatch.setenv("EMATIX_FLOW_DSN_PG", url)
    return shop


@pytest.fixture
def make(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Make:
    """Makes a mistake and looks at what became of it."""

    def attempt(mistake: Mistake) -> None:
        shop.declare(mistake.declares)
        mistake.prepare(shop)
        before = shop.targets()
        said = shop.flow(capsys, *mistake.command)
        print(said.err, end="")
        assert_one_line(said, mistake)
        assert shop.targets() == before
        if mistake.code == 1 and mistake.command == ("run", "load"):
            assert_recorded(shop, said)

    def assert_recorded(shop: Shop, said: Said) -> None:
        """The run log tells of the failure in the same words."""
        listed = json.loads(shop.flow(capsys, "runs", "list", "--format", "json").out)
        (run,) = listed["runs"]
        assert run["status"] == "failed"
        recorded = run["error_text"].rpartition(": ")[2]
        assert recorded in said.err

    return attempt
