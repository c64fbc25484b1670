"""``flow list`` and ``flow validate`` on projects that are right, half right and wrong."""

from __future__ import annotations

from pathlib import Path

from .conftest import Flow


def test_list_shows_what_is_declared(flow: Flow, project: Path) -> None:
    said = flow("list")
    assert (said.code, said.err) == (0, "")
    heading, doubles, numbers = said.out.splitlines()
    assert heading.split()[:2] == ["NAME", "SCHEDULE"]
    assert doubles.split() == [
        "load_doubles", "-", "truncate", "warehouse", "warehouse:", "shop.doubles", "load_numbers",
    ]  # fmt: skip
    assert "30 6 * * *" in numbers


def test_list_as_json(flow: Flow, project: Path) -> None:
    said = flow("list", "--format", "json")
    assert said.json["errors"] == []
    doubles, numbers = said.json["pipelines"]
    assert doubles["depends_on"] == ["load_numbers"]
    assert numbers["description"] == "Three numbers."
    assert numbers["targets"] == [
        {"table": "shop.numbers", "connection": "warehouse", "mode": "truncate"}
    ]
    assert numbers["file"] == str(project / "pipelines.py")


def test_modules_files_and_folders(flow: Flow, project: Path) -> None:
    (project / ".ematix-flow.toml").unlink()
    (project / "nested").mkdir()
    (project / "pipelines.py").rename(project / "nested" / "more_pipelines.py")
    for module in ("nested/more_pipelines.py", "nested", "nested.more_pipelines"):
        said = flow("list", "--module", module, "--format", "json")
        assert len(said.json["pipelines"]) == 2, module


def test_a_broken_pipeline_is_reported_beside_the_good(flow: Flow, half_broken: Path) -> None:
    said = flow("list")
    assert said.code == 2
    assert "load_numbers" in said.out
    (line,) = said.err.splitlines()
    assert line.startswith("flow: error: ")
    assert "pipelines.py:" in line
    assert "mode='upsert' is not known" in line


def test_an_empty_project(flow: Flow, project: Path) -> None:
    (project / "pipelines.py").write_text("")
    said = flow("list")
    assert (said.code, said.out) == (0, "No pipeline is declared in pipelines.py.\n")
    said = flow("run")
    assert said.code == 2
    assert "no pipeline is declared in pipelines.py" in said.err


def test_a_module_that_fails_to_load(flow: Flow, project: Path) -> None:
    (project / "pipelines.py").write_text("import json\njson.loads('{')\n")
    said = flow("list")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "failed while it was loaded: JSONDecodeError" in said.err
    (project / "pipelines.py").write_text("def broken(:\n")
    assert "pipelines.py:1: syntax error" in flow("list").err


def test_validate_reports_everything(flow: Flow, half_broken: Path) -> None:
    said = flow("validate", "--format", "json")
    assert said.code == 2
    assert said.json["ok"] is False
    assert [e["class"] for e in said.json["errors"]] == ["UnknownName"]
    assert "load_numbers" in {v["pipeline"] for v in said.json["pipelines"]}


def test_validate_one(flow: Flow, half_broken: Path) -> None:
    said = flow("validate", "load_numbers")
    assert (said.code, said.out, said.err) == (0, "load_numbers: ok\n", "")
    said = flow("validate", "misspelt")
    assert said.code == 2
    assert "mode='upsert' is not known" in said.err
    said = flow("validate", "load_nubmers")
    assert said.code == 2
    assert "did you mean 'load_numbers'?" in said.err


def test_validate_finds_a_missing_column(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text(module.read_text().replace("AS t(number, word)", "AS t(number, wrod)"))
    said = flow("validate", "load_numbers")
    assert said.code == 1
    assert "word" in said.err
    assert said.err.count("\n") == 1
    assert said.out == "load_numbers: not ok\n"
