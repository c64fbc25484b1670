"""``flow connections``, ``flow secrets`` and ``flow doctor``: everything but the secrets."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from .conftest import Flow

if TYPE_CHECKING:
    import pytest

SECRET = "hunter22-x"


def test_list_says_where_each_comes_from(
    flow: Flow, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_CRM", f"postgres://me:{SECRET}@db.example/crm")
    with (project / ".ematix-flow.toml").open("a") as file:
        file.write('[connections.lake]\nkind = "object_store_local"\npath = "lake"\n')
    assert flow("connections", "set", f"mine=mysql://me:{SECRET}@host/db").code == 0
    said = flow("connections", "list", "--format", "json")
    assert said.code == 0
    found = {c["name"]: c for c in said.json["connections"]}
    assert found["crm"]["origin"] == "environment variable EMATIX_FLOW_DSN_CRM"
    assert found["crm"]["fields"] == {"url": "postgres://me:***@db.example/crm"}
    assert found["lake"]["origin"].endswith(".ematix-flow.toml")
    assert found["mine"]["kind"] == "mysql"
    assert found["warehouse"]["origin"] == "declared in Python"
    text = flow("connections", "list")
    assert "postgres://me:***@db.example/crm" in text.out
    assert SECRET not in said.out + said.err + text.out + text.err


def test_list_without_any(flow: Flow) -> None:
    assert flow("connections", "list").out == "No connection is declared.\n"


def test_one_wrong_connection_does_not_hide_the_others(flow: Flow, folder: Path) -> None:
    (folder / ".ematix-flow.toml").write_text(
        '[connections.bad]\nkind = "postgers"\nurl = "x"\n'
        '[connections.good]\nkind = "duckdb"\npath = "x.duckdb"\n'
    )
    said = flow("connections", "list", "--format", "json")
    assert said.code == 2
    assert [c["name"] for c in said.json["connections"]] == ["bad", "good"]
    assert "did you mean 'postgres'?" in said.err


def test_set_writes_a_private_file(flow: Flow, tmp_path: Path) -> None:
    said = flow(
        "connections", "set", "pg", "kind=postgres", "host=db", "port=5433", "password=${P}"
    )
    assert said.code == 0
    path = tmp_path / "home" / "connections.toml"
    assert said.out == f"Connection pg (postgres) is written to {path}.\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (found,) = flow("connections", "list", "--format", "json").json["connections"]
    assert found["fields"] == {"host": "db", "port": 5433, "password": "${P}"}


def test_set_refuses_what_cannot_be_right(flow: Flow, tmp_path: Path) -> None:
    said = flow("connections", "set", "pg", "kind=postgres", "hots=db")
    assert said.code == 2
    assert "did you mean 'host'?" in said.err
    assert not (tmp_path / "home" / "connections.toml").exists()
    assert "is not KEY=VALUE" in flow("connections", "set", "pg", "nonsense").err


def test_check(flow: Flow, project: Path) -> None:
    said = flow("connections", "check", "warehouse", "--format", "json")
    assert said.code == 0
    (checked,) = said.json["connections"]
    assert (checked["name"], checked["ok"]) == ("warehouse", True)
    assert flow("connections", "check").out.startswith("warehouse: ok")


def test_check_of_an_unreachable_server(
    flow: Flow, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_CRM", f"postgres://me:{SECRET}@127.0.0.1:1/crm")
    said = flow("connections", "check", "crm", "warehouse")
    assert said.code == 1
    assert said.err.startswith("flow: error: crm: ")
    assert said.err.count("\n") == 1
    assert "warehouse: ok" in said.out
    assert SECRET not in said.err


def test_secrets_resolve_without_being_shown(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    (folder / "secret.txt").write_text(SECRET + "\n")
    cases = {
        "MY_SECRET": "environment variable MY_SECRET",
        "${MY_SECRET}": "environment variable MY_SECRET",
        f"${{NOT_SET_HERE:-{SECRET}}}": "its default",
        "file:secret.txt": "a file",
        "${file:secret.txt}": "a file",
    }
    for reference, source in cases.items():
        said = flow("secrets", "test", reference, "--format", "json")
        assert said.code == 0
        assert (said.json["resolves"], said.json["source"]) == (True, source)
        text = flow("secrets", "test", reference)
        assert f"resolves, from {source}." in text.out
        if SECRET not in reference:
            assert SECRET not in said.out + said.err + text.out + text.err


def test_a_secret_that_is_missing(flow: Flow) -> None:
    said = flow("secrets", "test", "file:nowhere.txt")
    assert said.code == 2
    assert "cannot read the secret file nowhere.txt" in said.err


def test_doctor_on_a_sound_project(flow: Flow, project: Path) -> None:
    said = flow("doctor", "--format", "json")
    assert said.code == 0, said.out
    checks = {c["name"]: c for c in said.json["checks"]}
    for name in ("python", "pyspark", "java", "cache", "run log", "project"):
        assert checks[name]["verdict"] == "ok", checks[name]
    assert checks["project"]["detail"] == "2 pipelines"
    assert checks["connection warehouse"]["verdict"] == "ok"
    assert "ok    python" in flow("doctor").out


def test_doctor_finds_what_is_wrong(
    flow: Flow, half_broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_CRM", "postgres://me:${UNSET_PASSWORD}@db/crm")
    (half_broken / "file").write_text("")
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", "file/run_log.db")
    said = flow("doctor", "--format", "json")
    assert said.code == 1
    checks = {c["name"]: c for c in said.json["checks"]}
    assert "mode='upsert'" in checks["project"]["detail"]
    assert "UNSET_PASSWORD is not set" in checks["connection crm"]["detail"]
    assert "cannot be written" in checks["run log"]["detail"]
    failed = {name for name, c in checks.items() if c["verdict"] == "fail"}
    assert failed == {"project", "connection crm", "run log"}


def test_doctor_outside_a_project(flow: Flow) -> None:
    said = flow("doctor", "--format", "json")
    assert said.code == 0
    checks = {c["name"]: c for c in said.json["checks"]}
    assert checks["project"] == {
        "name": "project", "verdict": "note", "detail": "none in this folder",
    }  # fmt: skip
