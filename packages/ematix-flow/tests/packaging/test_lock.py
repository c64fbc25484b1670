"""requirements.lock agrees with the package's metadata and names no place to download from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomlkit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[4]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomlkit.parse((ROOT / "packages/ematix-flow/pyproject.toml").read_text()).unwrap()[
    "project"
]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DIRECT = sorted({*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)})

# The names that published versions had: a user's requirement file must go on resolving.
PUBLISHED_EXTRAS = {
    "all",
    "dev",
    "df",
    "executor-k8s",
    "executor-lambda",
    "metrics",
    "metrics-otel",
    "metrics-prometheus",
    "observability",
    "runlog",
    "runlog-azure",
    "runlog-duckdb",
    "runlog-gcs",
    "runlog-mysql",
    "runlog-postgres",
    "runlog-s3",
    "spark",
}


def locked_versions(name: str) -> list[str]:
    return re.findall(rf"^{re.escape(canonicalize_name(name))}==(\S+)", LOCK, re.MULTILINE)


@pytest.mark.parametrize("text", DIRECT)
def test_direct_requirement_is_locked_to_a_version_it_allows(text: str) -> None:
    wanted = Requirement(text)
    if wanted.name == PROJECT["name"]:
        assert wanted.extras <= EXTRAS.keys()
        return
    versions = locked_versions(wanted.name)
    assert versions
    assert all(wanted.specifier.contains(version) for version in versions)


def test_every_locked_version_has_hashes() -> None:
    entries = re.split(r"\n(?=[a-z0-9])", LOCK)[1:]
    assert len(entries) > len(PROJECT["dependencies"])
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_lock_names_no_host_and_no_folder_of_a_machine() -> None:
    assert re.findall(r"https?://|--index-url|--find-links|file:|\s/\S+", LOCK) == []


def test_published_extras_exist() -> None:
    assert EXTRAS.keys() >= PUBLISHED_EXTRAS
    assert EXTRAS["spark"] == []


def test_all_holds_every_extra_for_users() -> None:
    reached: set[str] = set()
    waiting = ["all"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for text in EXTRAS[name]:
            wanted = Requirement(text)
            if wanted.name == PROJECT["name"]:
                waiting.extend(wanted.extras - reached)
    empty = {name for name, requirements in EXTRAS.items() if not requirements}
    assert reached | empty | {"dev"} == EXTRAS.keys()
