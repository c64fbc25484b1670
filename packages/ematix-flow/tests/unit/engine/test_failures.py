"""Failures known only by their text, as a remote server or a log gives them."""

from __future__ import annotations

import pytest

from ematix_flow.engine.failures import clean, translate
from ematix_flow.errors import (
    Cancelled,
    DataError,
    EmatixError,
    EngineError,
    Permanent,
    Transient,
)

STACK = "\n\tat org.apache.spark.Some.method(Some.scala:1)\n\tat java.base/java.lang.Thread.run\n"
ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 6.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 6.0 (TID 1) (localhost executor driver): "
)


class RemoteError(Exception):
    """Stands for an error of which nothing but the text arrived."""


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            f"{ABORTED}java.lang.OutOfMemoryError: Java heap space{STACK}",
            EngineError,
            "Spark ran out of memory; give it more with spark.driver.memory",
        ),
        (
            f"{ABORTED}java.io.IOException: No space left on device{STACK}",
            EngineError,
            "the disk is full; free some space",
        ),
        (
            f"{ABORTED}org.postgresql.util.PSQLException: FATAL: password authentication failed "
            f'for user "me"{STACK}',
            Permanent,
            "connection 'orders': the user or password is wrong",
        ),
        (
            f'{ABORTED}org.postgresql.util.PSQLException: ERROR: relation "t" is missing{STACK}',
            Permanent,
            """connection 'orders': relation "t" is missing""",
        ),
        (
            f"{ABORTED}org.postgresql.util.PSQLException: ERROR: deadlock detected{STACK}",
            Transient,
            "connection 'orders': deadlock detected; run again",
        ),
        (
            f"{ABORTED}java.sql.SQLException: cannot use jdbc:x://u:hunter22@host/db"
            f"?password=hunter22{STACK}Caused by: java.net.ConnectException: refused{STACK}",
            Transient,
            "connection 'orders': cannot use",
        ),
        (
            f"{ABORTED}java.io.FileNotFoundException: /data/out (Permission denied){STACK}",
            EngineError,
            "/data/out cannot be written or read",
        ),
        (f"[SPARK_JOB_CANCELLED] Job 3 cancelled{STACK}", Cancelled, "the Spark job was cancelled"),
        ("", EngineError, "RemoteError"),
    ],
)
def test_text_alone_is_enough(text: str, kind: type[EmatixError], sentence: str) -> None:
    found = translate(RemoteError(text), connection="orders")
    assert type(found) is kind
    assert str(found).startswith(sentence)
    assert "\tat " not in str(found)
    assert "hunter22" not in str(found)


def test_an_interrupt_is_a_cancel() -> None:
    assert isinstance(translate(KeyboardInterrupt()), Cancelled)


def test_sentences_are_freed_from_plans_codes_and_advice() -> None:
    text = (
        "[SOME.CONDITION] The value is wrong. Use `try_cast` to tolerate it and return NULL "
        'instead. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. '
        "SQLSTATE: 22018\n== SQL (line 1) ==\nselect secret\n^^^"
    )
    assert clean(text) == "The value is wrong"
    assert clean("no such column;\n'Project ['nope]\n+- Range") == "no such column"
    assert len(clean("x" * 10_000)) < 500


def test_a_refused_socket_outside_py4j_is_not_a_lost_jvm() -> None:
    found = translate(ConnectionRefusedError("refused"))
    assert "JVM" not in str(found)
    assert not isinstance(found, DataError)
