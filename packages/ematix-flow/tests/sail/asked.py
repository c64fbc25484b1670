"""Answers to SQL, as an engine gives them: text that two engines can be compared by.

As a program it asks Sail: queries come in and answers go out as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

ERROR = "an error"


def answers(spark: Any, queries: Sequence[str]) -> list[str]:
    """What each query gives, all its rows in one text; an error is only that."""
    return [_answer(spark, query) for query in queries]


def _answer(spark: Any, query: str) -> str:
    try:
        return repr([tuple(map(_plain, row)) for row in spark.sql(query).collect()])
    except Exception:  # noqa: BLE001 - what it says is each engine's own
        return ERROR


def _plain(value: Any) -> Any:
    """The two clients differ in how many zeros they show."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else value


def sails_answers(queries: Sequence[str]) -> list[str]:
    """The same from Sail, in a process of its own: PySpark allows one kind of session in each."""
    ended = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps(list(queries)),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: list[str] = json.loads(ended.stdout)
    return found


def main() -> None:
    """Read queries, start Sail, write its answers."""
    from ematix_flow.engine.sail import launch_sail
    from ematix_flow.engine.settings import derive

    engine = launch_sail(derive())
    try:
        sys.stdout.write(json.dumps(answers(engine.spark, json.load(sys.stdin))))
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
