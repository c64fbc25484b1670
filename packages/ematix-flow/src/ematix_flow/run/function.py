"""Calls a pipeline's function with what it asks for, and checks what it returns."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import LiveConnection
from ematix_flow.declaring import function_shape
from ematix_flow.engine.failures import translate
from ematix_flow.errors import DataError, EmatixError, RunError, SourceLocation
from ematix_flow.redaction import redact_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.model import PipelineSpec


@dataclass(frozen=True)
class RunInfo:
    """What a pipeline function may know of its run, as ``run``."""

    id: str
    slot: datetime | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    last_watermark: object | None = None


class OnlyAsking(LiveConnection):
    """A live connection while nothing may change: in validate, preview and dry-run."""

    def __init__(self, live: LiveConnection) -> None:
        self._live = live

    def query(self, sql: str, max_rows: int | None = None) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries."""
        return self._live.query(sql, max_rows)

    def execute(self, sql: str) -> int:
        """Refused."""
        raise RunError(
            "its function calls execute(), which validate, preview and dry-run must not do",
            fix="run the pipeline, or move the statement out of its function",
        )

    def ping(self) -> None:
        """Ask the other side for an answer."""
        self._live.ping()

    def info(self) -> dict[str, Any]:
        """Where it leads, without secrets."""
        return self._live.info()

    def close(self) -> None:
        """Give the connection back."""
        self._live.close()


def call_function(
    spec: PipelineSpec, givers: Mapping[str, Callable[[], Any]]
) -> str | DataFrame | None:
    """Run the function; each argument is made only if the function asks for it."""
    arguments = {name: givers[role]() for name, role in function_shape(spec.function).parameters}
    try:
        bound = inspect.signature(spec.function).bind_partial()
        bound.arguments.update(arguments)
        returned = spec.function(*bound.args, **bound.kwargs)
        if inspect.iscoroutine(returned):
            returned = awaited(returned)
    except EmatixError:
        raise
    except (Exception, SystemExit) as error:
        frame = _user_frame(error, spec)
        if type(error).__module__.startswith(("pyspark.", "py4j.")):
            known = translate(error)
            known.where = frame
            raise known from error
        raise RunError(
            redact_text(
                f"the function of pipeline {spec.name!r} raised {type(error).__name__}: {error}"
            ),
            fix="correct the function",
            where=frame,
        ) from error
    return _checked(spec, returned)


def awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result; a notebook's own event loop is left alone."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _user_frame(error: BaseException, spec: PipelineSpec) -> SourceLocation:
    return function_frame(error, spec.function) or spec.location


def function_frame(error: BaseException, function: Callable[..., Any]) -> SourceLocation | None:
    """Where in a function's own file an error arose."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return SourceLocation(frames[-1].filename, frames[-1].lineno or 0) if frames else None


def _checked(spec: PipelineSpec, returned: Any) -> str | DataFrame | None:
    if returned is None:
        if spec.source_table is None:
            raise DataError(
                f"the function of pipeline {spec.name!r} returned nothing and there is no "
                "source_table=",
                fix="return SQL or a Spark DataFrame, or give source_table=",
                where=spec.location,
            )
        return None
    if spec.source_table is not None:
        raise DataError(
            f"pipeline {spec.name!r} has source_table= and its function returned something too",
            fix="keep one of them",
            where=spec.location,
        )
    if isinstance(returned, str):
        if not returned.strip():
            raise DataError(
                f"the function of pipeline {spec.name!r} returned an empty text",
                fix="return a SELECT",
                where=spec.location,
            )
        return returned
    if hasattr(returned, "selectExpr") and hasattr(returned, "schema"):
        frame: DataFrame = returned
        return frame
    raise DataError(
        f"the function of pipeline {spec.name!r} returned a {type(returned).__name__}",
        fix="return SQL, a Spark DataFrame, or nothing with source_table=",
        where=spec.location,
    )
