"""Shell completion: the script that a shell reads, and where it is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    import click

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_FLOW_COMPLETE"


def script(command: click.Command) -> str:
    """The completion script for the shell in use."""
    return _script(command, _shell())


def install(command: click.Command) -> str:
    """Write the script where the shell in use finds it; returns what to tell the user."""
    shell = _shell()
    text = _script(command, shell)
    if shell == "fish":
        path = Path.home() / ".config" / "fish" / "completions" / "flow.fish"
    else:
        path = Path.home() / ".config" / "ematix-flow" / f"completion.{shell}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    if shell != "fish":
        _source_from(Path.home() / f".{shell}rc", path)
    return f"Completion for {shell} is installed in {path}. Open a new shell to use it."


def _source_from(settings: Path, script_file: Path) -> None:
    line = f"[ -f '{script_file}' ] && . '{script_file}'"
    held = settings.read_text(encoding="utf-8") if settings.exists() else ""
    if line not in held:
        gap = "" if not held or held.endswith("\n") else "\n"
        settings.write_text(f"{held}{gap}{line}\n", encoding="utf-8")


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise ConfigError(
            f"there is no completion for the shell {name or '(none)'!r}",
            fix=f"set SHELL to one of {', '.join(_SHELLS)}",
        )
    return name


def _script(command: click.Command, shell: str) -> str:
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise ConfigError(f"there is no completion for the shell {shell!r}")
    return found(command, {}, "flow", _VARIABLE).source()
