"""Imports the Spark Connect client without pandas, which it asks for and mostly never uses.

Importing pandas takes longer than all the rest of a short run. While the client's modules are
imported, stand-ins take its place; the first use of anything in one imports the real pandas.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_STOOD_IN_FOR = ("pandas", "pandas.api", "pandas.api.types")


class _StandIn(ModuleType):
    """A module that becomes the real one when something in it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["_importer"] = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Asked by the import system, not by anyone who needs pandas.
            raise AttributeError(name)
        inside = sys.modules.get(self.__name__) is self
        if inside and name[:1].isupper() and threading.get_ident() == self._importer:
            # A class named in an annotation; other threads may really mean it.
            return object
        _step_aside()
        real = importlib.import_module(self.__name__)
        return getattr(real, name)


class _TypesStandIn(_StandIn):
    """``from pandas.api.types import …`` takes functions at once, so these must be there."""

    def is_datetime64_dtype(self, value: Any) -> bool:
        return bool(self.__getattr__("is_datetime64_dtype")(value))

    def is_timedelta64_dtype(self, value: Any) -> bool:
        return bool(self.__getattr__("is_timedelta64_dtype")(value))


@contextlib.contextmanager
def pandas_when_needed() -> Iterator[None]:
    """Let what is imported inside the block have its pandas later."""
    if "pandas" in sys.modules:
        yield
        return
    from importlib import metadata

    pandas, api, types = (
        _StandIn("pandas"),
        _StandIn("pandas.api"),
        _TypesStandIn("pandas.api.types"),
    )
    vars(pandas).update(__version__=metadata.version("pandas"), __path__=[], api=api)
    vars(api).update(__path__=[], types=types)
    sys.modules.update(zip(_STOOD_IN_FOR, (pandas, api, types), strict=True))
    try:
        yield
    finally:
        _step_aside()


def _step_aside() -> None:
    for name in _STOOD_IN_FOR:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
