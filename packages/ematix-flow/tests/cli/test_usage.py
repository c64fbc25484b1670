"""Help, usage errors, exit codes, and the one line that every failure is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ematix_flow import __version__
from ematix_flow.cli.main import COMMANDS, app, main

from .conftest import Flow

SUBCOMMANDS = [
    *([name] for name in COMMANDS),
    *(["runs", name] for name in ("list", "show")),
    *(["connections", name] for name in ("list", "check", "set")),
    *(["watermark", name] for name in ("show", "set", "reset")),
    ["secrets", "test"],
]


def command_at(path: list[str]) -> click.Command:
    found: click.Command = app
    for name in path:
        assert isinstance(found, click.Group)
        next_one = found.get_command(click.Context(found), name)
        assert next_one is not None
        found = next_one
    return found


def test_version(flow: Flow) -> None:
    said = flow("--version")
    assert (said.code, said.out) == (0, f"flow, version {__version__}\n")


def test_help_names_every_command(flow: Flow) -> None:
    said = flow("--help")
    assert said.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in said.out


@pytest.mark.parametrize("path", SUBCOMMANDS, ids=" ".join)
def test_every_command_explains_itself(flow: Flow, path: list[str]) -> None:
    said = flow(*path, "--help")
    assert said.code == 0
    command = command_at(path)
    assert command.help
    if not isinstance(command, click.Group):
        assert "Examples:" in said.out
        assert f"  flow {' '.join(path)}" in said.out
        assert "--format [text|json]" in said.out
        for option in ("--log-level", "--log-format", "--verbose"):
            assert option in said.out


@pytest.mark.parametrize("path", SUBCOMMANDS, ids=" ".join)
def test_examples_use_options_that_exist(path: list[str]) -> None:
    command = command_at(path)
    if isinstance(command, click.Group):
        return
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    used = {word for word in (command.epilog or "").split() if word.startswith("-")}
    assert used <= known


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["lsit"],
            "flow: error: there is no command 'lsit'; did you mean 'list'? See: flow --help",
        ),
        (["list", "--formt", "json"], "flow: error: no such option '--formt'"),
        (["list", "--format", "xml"], "flow: error: invalid value for '--format'"),
        (["preview"], "flow: error: missing argument 'NAME'; see: flow preview --help"),
        (["runs", "lst"], "flow: error: no such command 'lst'"),
        (["run", "-p", "day"], "flow: error: invalid value for --param: 'day' is not KEY=VALUE"),
        (["runs", "list", "--limit", "0"], "flow: error: invalid value for '--limit'"),
        (
            ["run", "--no-run-log", "--run-log", "x.db"],
            "flow: error: --run-log, --run-log-path and --no-run-log exclude each other",
        ),
        (["list"], "flow: error: there is no project here: no --module was given"),
        (["list", "--module", "nowhere.py"], "flow: error: there is no file nowhere.py"),
        (["list", "--module", "no_such_module"], "flow: error: there is no module"),
        (["connections", "check", "nothing"], "flow: error: nothing: there is no connection"),
        (["connections", "set", "x"], "flow: error: give a name and at least url=…"),
        (
            ["runs", "list", "--run-log", "sqlit://x"],
            "flow: error: a run log cannot be at sqlit://",
        ),
        (
            ["runs", "list", "--run-log", "redis://b/p"],
            "flow: error: a run log cannot be at redis://",
        ),
        (["runs", "show", "abc"], "flow: error: there is no run 'abc' in the run log"),
        (["logs", "../../x"], "flow: error: '../../x' is not the id of a run"),
        (["secrets", "test", "NOT_SET_ANYWHERE"], "flow: error: environment variable NOT_SET_ANY"),
        (["secrets", "test", "vualt:x"], "flow: error: ${vualt:x} is not a reference"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(flow: Flow, arguments: list[str], line: str) -> None:
    said = flow(*arguments)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1


def test_no_command_shows_help(flow: Flow) -> None:
    said = flow()
    assert said.code == 2
    assert "Commands:" in said.err


def test_an_unexpected_failure_is_one_line_too(
    flow: Flow, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("cannot do postgres://me:hunter22@host/db")

    monkeypatch.setattr("ematix_flow.discovery.load_project", fail)
    said = flow("list")
    assert said.code == 1
    assert said.err == (
        "flow: error: unexpected ValueError: cannot do postgres://me:***@host/db; "
        "add --verbose to see where\n"
    )
    said = flow("list", "--verbose")
    assert "Traceback" in said.err
    assert "hunter22" not in said.err


def test_an_interrupt_is_exit_code_130(
    flow: Flow, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ematix_flow.discovery.load_project", interrupt)
    said = flow("list")
    assert said.code == 130
    assert said.err.strip() == "flow: cancelled"


def test_windows_is_told_about_wsl(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("ematix_flow.cli.main.os.name", "nt")
        code = main(["list"])
    assert code == 2


def test_a_command_leaves_nothing_behind(flow: Flow, project: Path) -> None:
    stdout, handlers = sys.stdout, list(logging.getLogger("ematix_flow").handlers)
    assert flow("list", "--format", "json").code == 0
    assert sys.stdout is stdout
    assert logging.getLogger("ematix_flow").handlers == handlers
    assert logging.getLogger("ematix_flow").propagate


def test_what_a_module_prints_does_not_spoil_json(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text("print('hello from the module')\n" + module.read_text())
    said = flow("list", "--format", "json")
    assert [p["name"] for p in said.json["pipelines"]] == ["load_doubles", "load_numbers"]
    assert "hello from the module" in said.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_once(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    for _ in range(2):
        assert flow("--install-completion").code == 0
    written = [p for p in tmp_path.rglob("*") if p.is_file() and "_FLOW_COMPLETE" in p.read_text()]
    assert len(written) == 1
    if shell != "fish":
        assert (tmp_path / f".{shell}rc").read_text().count(str(written[0])) == 2
    said = flow("--show-completion")
    assert "_FLOW_COMPLETE" in said.out


def test_completion_for_an_unknown_shell(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")
    said = flow("--show-completion")
    assert said.code == 2
    assert said.err.startswith("flow: error: there is no completion for the shell 'csh'")


def test_the_shell_is_told_names_of_pipelines(project: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "ematix_flow.cli.main"],
        env={
            **os.environ,
            "_FLOW_COMPLETE": "bash_complete",
            "COMP_WORDS": "flow run load_n",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.strip() == "plain,load_numbers", said.stderr
