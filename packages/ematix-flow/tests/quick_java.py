"""Java for engines that run thousands of small queries once each, as only tests do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "JDK_JAVA_OPTIONS"
# Compiling code well costs more than it gains where hardly any of it runs for long. Java would
# give such a JVM little room for compiled code, and then spend its time on clearing it.
_FLAGS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=512m"


@contextmanager
def quick_java() -> Iterator[None]:
    """A JVM that is started inside the block compiles fast instead of well."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = _FLAGS if before is None else f"{before} {_FLAGS}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
