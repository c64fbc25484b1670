"""``flow init``."""

from __future__ import annotations

from pathlib import Path

import click

from ematix_flow.cli.options import common_options, examples
from ematix_flow.cli.output import say, say_json
from ematix_flow.cli.starter import starter_files
from ematix_flow.errors import ConfigError


@click.command(epilog=examples("flow init my_project", "flow init . --force"))
@click.argument("path", type=click.Path(path_type=Path, file_okay=True))
@click.option("--force", is_flag=True, help="Overwrite files that are already there.")
@common_options
def init(*, path: Path, force: bool, output: str) -> None:
    """Write a new project into PATH: two pipelines, their connections, some data.

    It runs at once, on this machine alone. Exit code 2 when a file would be overwritten.
    """
    files = starter_files(path.resolve().name)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, not a folder", fix="choose another name")
    taken = [name for name in files if (path / name).exists()]
    if taken and not force:
        raise ConfigError(
            f"{path} already has {', '.join(taken)}",
            fix="choose another folder, or add --force to overwrite",
        )
    try:
        for name, text in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be written: {error.strerror}",
            fix="choose another folder",
        ) from error
    if output == "json":
        say_json({"path": str(path), "files": sorted(files)})
        return
    say(f"A new project is in {path}:")
    for name in sorted(files):
        say(f"  {name}")
    say("\nNext:")
    if path.resolve() != Path.cwd():
        say(f"  cd {path}")
    say("  flow run")
    say("  flow status")
