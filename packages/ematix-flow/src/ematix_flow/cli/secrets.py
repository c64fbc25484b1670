"""``flow secrets test``."""

from __future__ import annotations

import click

from ematix_flow.cli.options import common_options, examples
from ematix_flow.cli.output import say, say_json


@click.group()
def secrets() -> None:
    """Test references to secrets."""


@secrets.command(
    "test",
    epilog=examples(
        "flow secrets test PGPASSWORD",
        "flow secrets test aws:prod/warehouse#password",
        "flow secrets test '${file:/run/secrets/password}'",
    ),
)
@click.argument("reference")
@common_options
def test(*, reference: str, output: str) -> None:
    """Resolve a reference and say where its value came from, never what it is.

    Exit code 2 when it cannot be resolved.
    """
    from ematix_flow.secrets import resolve_reference

    bare = reference
    if bare.startswith("${") and bare.endswith("}"):
        bare = bare[2:-1]
    empty = resolve_reference(bare) == ""
    source = _source(bare)
    if output == "json":
        say_json({"reference": reference, "resolves": True, "source": source, "empty": empty})
    else:
        say(f"{reference} resolves, from {source}{'; its value is empty' if empty else ''}.")


def _source(reference: str) -> str:
    import os

    prefix, colon, rest = reference.partition(":")
    if not colon or rest.startswith("-"):
        # ":-" stands between a variable and its default.
        return f"environment variable {prefix}" if os.environ.get(prefix) else "its default"
    named = {"file": "a file", "aws": "AWS Secrets Manager"}
    return named.get(prefix, f"the resolver of {prefix}:")
