"""Where declarations are kept. A default registry is always active; tests isolate their own.

While a project is being loaded the registry *collects* errors instead of raising them, so that
one bad declaration does not hide the others or stop the good ones.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from ematix_flow.connections import Connection, nearest
from ematix_flow.errors import (
    DeclarationError,
    DuplicateName,
    EmatixError,
    SourceLocation,
    UnknownConnection,
    UnknownName,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ematix_flow.pipeline import Pipeline, Transform

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Broken:
    """Stands where a declaration failed while a project was being loaded."""

    name: str
    error: DeclarationError


@dataclass
class Registry:
    """The declared connections, pipelines and transforms, and what was wrong with the rest."""

    collecting: bool = False
    connections: dict[str, Connection] = field(default_factory=dict)
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    transforms: dict[str, Transform] = field(default_factory=dict)
    broken: dict[str, Broken] = field(default_factory=dict)
    errors: list[DeclarationError] = field(default_factory=list)
    load_failures: list[DeclarationError] = field(default_factory=list)

    def add_connection(self, connection: Connection) -> None:
        """Register a connection; a second one of the same name replaces it."""
        self.connections[connection.name] = connection

    def add_pipeline(self, pipeline: Pipeline) -> None:
        """Register a pipeline; only its own module and function may define it again."""
        held = self.pipelines.get(pipeline.name)
        # A notebook's cell may be run again; a project's file is read once.
        again = held is not None and not (
            self.collecting and held.spec.location != pipeline.spec.location
        )
        if held is not None and not (again and _origin(held) == _origin(pipeline)):
            raise DuplicateName(
                f"pipeline {pipeline.name!r} is already declared at {held.spec.location}",
                fix="rename one of them, or give it name=",
                where=pipeline.spec.location,
            )
        self.broken.pop(pipeline.name, None)
        self.pipelines[pipeline.name] = pipeline

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline of that name, or the reason why there is none."""
        if name in self.pipelines:
            return self.pipelines[name]
        if name in self.broken:
            raise self.broken[name].error
        known = [*self.pipelines, *self.broken]
        fix = nearest(name, known) if known else "declare one with @ematix.pipeline"
        raise UnknownName(f"there is no pipeline {name!r}", fix=fix)

    def add_transform(self, transform: Transform) -> None:
        """Register a transform; only its own module and function may define it again."""
        held = self.transforms.get(transform.name)
        if held is not None and _place(held.function, held.location) != _place(
            transform.function, transform.location
        ):
            raise DuplicateName(
                f"transform {transform.name!r} is already declared at {held.location}",
                fix="rename one of them, or give it name=",
                where=transform.location,
            )
        self.broken.pop(transform.name, None)
        self.transforms[transform.name] = transform

    def transform(self, name: str) -> Transform:
        """The transform of that name, or the reason why there is none."""
        if name not in self.transforms and name in self.broken:
            raise self.broken[name].error
        if name not in self.transforms:
            known = list(self.transforms)
            fix = nearest(name, known) if known else "declare one with @ematix.transform"
            raise UnknownName(f"there is no transform {name!r}", fix=fix)
        return self.transforms[name]

    def fail_to_load(self, error: DeclarationError) -> None:
        """Note that a module ended before all of its declarations were seen."""
        self.errors.append(error)
        self.load_failures.append(error)

    def refuse(self, name: str, error: EmatixError, where: SourceLocation | None) -> Broken:
        """Collect a declaration's error, or raise it where nobody collects."""
        located = error if isinstance(error, DeclarationError) else DeclarationError(error.what)
        located.fix = error.fix
        located.where = error.where or where
        if not self.collecting:
            raise located
        broken = Broken(name, located)
        self.broken[name] = broken
        self.errors.append(located)
        return broken


def _origin(pipeline: Pipeline) -> tuple[str, str, str]:
    return _place(pipeline.spec.function, pipeline.spec.location)


def _place(function: Callable[..., Any], location: SourceLocation) -> tuple[str, str, str]:
    module = getattr(function, "__module__", "")
    # A notebook's cells are so many files of one module; elsewhere two files are two places.
    file = "" if module == "__main__" else location.file
    return module, getattr(function, "__qualname__", repr(function)), file


_default = Registry()
_active: ContextVar[Registry] = ContextVar("ematix_flow_registry")


def active_registry() -> Registry:
    """The registry that declarations go to now."""
    return _active.get(_default)


@contextlib.contextmanager
def isolated_registry(*, collecting: bool = False) -> Iterator[Registry]:
    """A fresh registry for the length of a block."""
    token = _active.set(Registry(collecting=collecting))
    try:
        yield _active.get()
    finally:
        _active.reset(token)


def caller_frame() -> FrameType:
    """The nearest frame outside this package: the user's own code."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in (_PACKAGE, "dataclasses"):
            break
        frame = frame.f_back
    return frame


def caller_location() -> SourceLocation:
    """The user's own file and line."""
    frame = caller_frame()
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


def register_connection(connection: Connection) -> Connection:
    """Register a connection under its name and hand it back."""
    if not isinstance(connection, Connection):
        raise DeclarationError(
            f"register_connection takes a connection, not {type(connection).__name__}",
            fix="pass for example PostgresConnection(name=…, url=…)",
            where=caller_location(),
        )
    active_registry().add_connection(connection)
    return connection


def get_connection(name: str) -> Connection:
    """The connection registered in this process under ``name``."""
    held = active_registry().connections
    if name not in held:
        raise UnknownConnection(
            f"no connection {name!r} is registered in this process",
            fix=nearest(name, held) if held else "register one with register_connection(…)",
        )
    return held[name]


def registered_connections() -> dict[str, Connection]:
    """All connections registered in this process, by name."""
    return dict(active_registry().connections)
