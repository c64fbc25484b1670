"""Lets a user-defined function work on whichever Spark the run gets.

``@udf`` decides for one kind when a module is loaded, which is before anyone knows whether the
run will be in this process or over Spark Connect.
"""

from __future__ import annotations

from typing import Any


def serve_both_kinds() -> None:
    """Let functions made for one kind of session make their columns for the other, too."""
    from pyspark.sql.connect.udf import UserDefinedFunction as Remote
    from pyspark.sql.udf import UserDefinedFunction as Local
    from pyspark.sql.utils import is_remote

    if getattr(Local.__call__, "serves_both_kinds", False):
        return
    _let_pass(Local, Remote, when=is_remote)
    _let_pass(Remote, Local, when=lambda: not is_remote())


def _let_pass(made: Any, wanted: Any, *, when: Any) -> None:
    call = made.__call__

    def passed(self: Any, *arguments: Any, **named: Any) -> Any:
        if not when():
            return call(self, *arguments, **named)
        other = wanted(
            self.func,
            returnType=self._returnType,
            name=self._name,
            evalType=self.evalType,
            deterministic=self.deterministic,
        )
        return other(*arguments, **named)

    passed.serves_both_kinds = True  # type: ignore[attr-defined]
    made.__call__ = passed
