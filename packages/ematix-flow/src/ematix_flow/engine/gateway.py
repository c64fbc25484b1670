"""The Python end of the gateway: connecting PySpark to a JVM that is already there."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def connect(port: int, secret: str) -> Any:
    """A gateway to the JVM that listens on ``port``; the environment is left as it was."""
    from pyspark.java_gateway import launch_gateway

    address = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    with environment(address):
        return launch_gateway()  # type: ignore[no-untyped-call]


def load_pyspark() -> None:
    """Import what a session needs; done while the JVM boots, on the other core."""
    import pyspark.sql.classic.dataframe
    import pyspark.sql.functions
    import pyspark.sql.readwriter  # noqa: F401

    _spare_numpy()
    quiet_loggers()


def quiet_loggers() -> None:
    """Stop PySpark from printing every failed query as JSON; its error is reported once."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    # Py4J logs a lost JVM on the root logger, with two stacks.
    root = logging.getLogger()
    if not any(isinstance(known, _WithoutPy4J) for known in root.filters):
        root.addFilter(_WithoutPy4J())


class _WithoutPy4J(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname


def open_session(gateway: Any, conf: Mapping[str, str], *, python: str) -> SparkSession:
    """A SparkSession on ``gateway``, with PySpark's own SIGINT handler left out."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with environment({"PYSPARK_PYTHON": python}):
            hold(gateway)
            spark_conf = SparkConf(loadDefaults=False, _jvm=gateway.jvm)
            for key, value in conf.items():
                spark_conf.set(key, value)
            context = SparkContext(conf=spark_conf)
        return SparkSession(context)
    finally:
        if main_thread:
            signal.signal(signal.SIGINT, handler)


def hold(gateway: Any) -> None:
    """Make a gateway PySpark's own before there is a session: it reads errors through it."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=gateway)


def expect_loss() -> None:
    """Keep PySpark's accumulator server from printing that the JVM hung up on it."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    server: Any = None if context is None else context._accumulatorServer
    if server is not None:
        server.handle_error = lambda *_: None


def forget(gateway: Any) -> None:
    """Drop PySpark's process-wide hold on a gateway whose JVM is gone or going."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with contextlib.suppress(Exception):
        gateway.shutdown_callback_server()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    if SparkContext._gateway is not gateway:
        return
    context = SparkContext._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        context._jsc = None
        context.stop()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def renew_connection(context: SparkContext) -> None:
    """Drop this thread's connection: after an interrupt its next answer may be a stale one.

    Also called as a thread ends, so that its socket does not wait for the garbage collector.
    """
    if context._gateway is None:
        return
    client = context._gateway._gateway_client
    connection = client.get_thread_connection()
    if connection is not None:
        connection.close()
        with contextlib.suppress(ValueError):
            client.deque.remove(connection)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the length of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _spare_numpy() -> None:
    """Replace two argument converters that import pandas on the first call to the JVM.

    They only ask whether a value is a NumPy one, and it cannot be while numpy is not loaded.
    Importing pandas for that would cost more than starting the session does.
    """
    from py4j import protocol
    from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

    def loaded(kind: str) -> Any:
        # While another thread imports it, numpy is there without its types.
        return getattr(sys.modules.get("numpy"), kind, None)

    class LazyArrayConverter(NumpyArrayConverter):
        def can_convert(self, obj: Any) -> bool:
            kind = loaded("ndarray")
            return kind is not None and isinstance(obj, kind) and obj.ndim == 1

    class LazyScalarConverter(NumpyScalarConverter):
        def can_convert(self, obj: Any) -> bool:
            kind = loaded("generic")
            return kind is not None and isinstance(obj, kind)

    lazy = {NumpyArrayConverter: LazyArrayConverter, NumpyScalarConverter: LazyScalarConverter}
    converters = protocol.INPUT_CONVERTER
    converters[:] = [
        lazy[type(converter)]() if type(converter) in lazy else converter
        for converter in converters
    ]
