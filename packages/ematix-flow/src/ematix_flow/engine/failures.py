"""Turns what Spark, JDBC and Python workers throw into one sentence with the root cause.

Spark's errors are read into ``Failure`` (its condition, parameters and chain of causes) and
matched against the rules below, first match wins. Stacks and plans never reach the sentence;
the original stays attached as ``__cause__`` for ``--verbose``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ematix_flow import errors
from ematix_flow.errors import (
    BadValue,
    Cancelled,
    DataError,
    EmatixError,
    EngineError,
    Permanent,
    SourceLocation,
    Transient,
)
from ematix_flow.redaction import redact_text

_PACKAGE = str(Path(__file__).parent.parent)
_LONGEST = 400
_LONGEST_VALUE = 60
_DEPTH = 12

_CONDITION = re.compile(r"\s*\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]\s*")
_THROWN = re.compile(r"(?:^|Caused by: |driver\): )((?:[a-z]\w*\.)+[A-Z][\w$]*): ?([^\n]*)", re.M)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_NOISE = (
    re.compile(r"\n\s+at .*", re.S),
    re.compile(r"\n\n?JVM stacktrace:.*", re.S),
    re.compile(r"\n?== (?:SQL|DataFrame).*", re.S),
    re.compile(r";\n.*", re.S),
    re.compile(r"\s*SQLSTATE: \w+"),
    re.compile(r"(?:If necessary )?[Ss]et \"?spark\.\S+\"? to \S+ to [^.]*\."),
    re.compile(r"Use [`']\w+[`'] to tolerate [^.]*\."),
    re.compile(r"Consider setting 'spark\.[^.]*\..*", re.S),
)


@dataclass(frozen=True)
class Failure:
    """What is known about an error: ``chain`` runs from what was thrown to its root."""

    error: BaseException
    condition: str
    parameters: Mapping[str, str]
    message: str
    chain: tuple[tuple[str, str], ...] = field(default=())

    def thrown(self, *names: str) -> tuple[str, str] | None:
        """The deepest link whose class name ends with one of ``names``."""
        for kind, message in reversed(self.chain):
            if kind.endswith(names):
                return kind, message
        return None

    def says(self, *texts: str) -> str | None:
        """The deepest message that contains one of ``texts``."""
        for message in (*(m for _, m in reversed(self.chain)), self.message):
            if any(text in message for text in texts):
                return message
        return None

    @property
    def root(self) -> str:
        """The deepest message that says anything."""
        for _, message in reversed(self.chain):
            if clean(message):
                return clean(message)
        return clean(self.message)


def translate(error: BaseException, *, connection: str = "jdbc") -> EmatixError:
    """The error to show for ``error``; ``connection`` names the database being used, if any."""
    if isinstance(error, EmatixError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Cancelled("cancelled by Ctrl-C, nothing was written")
    failure = read(error)
    for rule in _RULES:
        found = rule(failure, connection)
        if found is not None:
            break
    else:
        found = _unknown(failure)
    found.what = redact_text(found.what)
    found.fix = redact_text(found.fix)
    found.__cause__ = error
    return found


def read(error: BaseException) -> Failure:
    """Collect what an error of PySpark, Py4J or Spark Connect says about itself."""
    chain = tuple(_java_chain(error)) or tuple(_THROWN.findall(str(error)))
    condition = _ask(error, "getCondition") or ""
    if not condition:
        named = (_CONDITION.match(message) for message in (*(m for _, m in chain), str(error)))
        condition = next((match.group(1) for match in named if match), "")
    parameters = _ask(error, "getMessageParameters") or {}
    return Failure(error, condition, parameters, _message(error, chain), chain)


def clean(message: str) -> str:
    """The sentence inside a Spark message: no stack, plan, code or advice about settings."""
    text = _CONDITION.sub("", message, count=1) if _CONDITION.match(message) else message
    for noise in _NOISE:
        text = noise.sub("", text)
    text = " ".join(text.split()).rstrip(" .;")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _message(error: BaseException, chain: tuple[tuple[str, str], ...]) -> str:
    if hasattr(error, "java_exception") and chain:
        return chain[0][1]
    return str(error)


def _ask(error: BaseException, method: str) -> Any:
    # Reading details may call into a JVM that is no longer there.
    with contextlib.suppress(Exception):
        return getattr(error, method)()
    return None


def _java_chain(error: BaseException) -> Iterator[tuple[str, str]]:
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    with contextlib.suppress(Exception):
        for _ in range(_DEPTH):
            if java is None:
                return
            yield str(java.getClass().getName()), str(java.getMessage() or "")
            java = java.getCause()


def _cancelled(failure: Failure, _: str) -> EmatixError | None:
    if failure.condition in ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED"):
        return Cancelled("the Spark job was cancelled, nothing was written")
    return None


def _jvm_gone(failure: Failure, _: str) -> EmatixError | None:
    error = failure.error
    network = type(error).__name__ == "Py4JNetworkError"
    if not network and not (isinstance(error, ConnectionError) and _passes(error, "py4j")):
        return None
    return EngineError(
        "Spark's JVM ended unexpectedly",
        fix="run again; if it repeats, it was probably killed for lack of memory",
    )


def _server_gone(failure: Failure, _: str) -> EmatixError | None:
    grpc = "grpc" in f"{type(failure.error).__name__} {failure.message}".lower()
    if "DEADLINE_EXCEEDED" in failure.message and grpc:
        return EngineError("the Spark Connect server does not answer", fix="check its address")
    if "UNAVAILABLE" in failure.message and grpc:
        found = re.search(r"Failed to connect to remote host: ([\w ]+)", failure.message)
        bare = re.search(r"(?i)handshake|ssl|certificate", failure.message)
        why = f" ({found[1].lower()})" if found else " (TLS with it fails)" if bare else ""
        return EngineError(
            f"the Spark Connect server cannot be reached{why}", fix="check its address"
        )
    if "UNAUTHENTICATED" in failure.message:
        return EngineError("the Spark Connect server refused the token", fix="check the token")
    return None


def _python_function(failure: Failure, _: str) -> EmatixError | None:
    traceback = failure.parameters.get("traceback") or failure.says("Traceback (most recent call")
    if failure.condition != "PYTHON_EXCEPTION" and traceback is None:
        return None
    text = (traceback or failure.message).split("\n\tat ")[0].rstrip()
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    last = lines[-1] if lines else "no traceback"
    own = _our_own(last)
    if own is not None:
        return own
    frames = [
        SourceLocation(frame["file"], int(frame["line"]))
        for frame in _FRAME.finditer(text)
        if not _is_library(frame["file"]) and not frame["file"].startswith(_PACKAGE)
    ]
    return EngineError(
        f"a Python function failed inside Spark: {clean(last)}",
        fix="correct the function, or the rows it was given",
        where=frames[-1] if frames else None,
    )


def _our_own(last: str) -> EmatixError | None:
    """The error that our own code raised in a Python worker, from the last line of its trace."""
    raised = re.fullmatch(r"ematix_flow\.errors\.(?P<kind>\w+): (?P<text>.*)", last)
    if raised is None:
        return None
    kind: Any = getattr(errors, raised["kind"], EngineError)
    what, _, fix = raised["text"].partition("; ")
    refused = re.fullmatch(r"connection '(?P<name>[^']*)': (?P<text>.*)", what)
    if refused is not None and issubclass(kind, Permanent | Transient):
        refusal: EmatixError = kind(refused["text"], connection=refused["name"], fix=fix)
        return refusal
    plain = BadValue if issubclass(kind, DataError) else EngineError
    return plain(what, fix=fix)


def _python_crash(failure: Failure, _: str) -> EmatixError | None:
    if failure.says("Python worker exited unexpectedly", "Python worker crashed"):
        return EngineError(
            "a Python worker process ended without a word (a crash, or killed for lack of memory)",
            fix="check the function's native libraries and how much data it holds at once",
        )
    if failure.says("Cannot run program", "Python in worker has different version"):
        return EngineError(f"Spark's Python worker could not start: {failure.root}")
    return None


def _out_of_memory(failure: Failure, _: str) -> EmatixError | None:
    if failure.thrown("OutOfMemoryError") or failure.says("OutOfMemoryError"):
        return EngineError(
            "Spark ran out of memory",
            fix="give it more with spark.driver.memory, or process less at a time",
        )
    return None


def _disk(failure: Failure, _: str) -> EmatixError | None:
    if failure.says("No space left on device", "Disk quota exceeded", "not enough space"):
        return EngineError(
            "the disk is full", fix="free some space where the target and TMPDIR are"
        )
    denied = failure.says("Permission denied", "Mkdirs failed to create", "Read-only file system")
    if denied is None:
        return None
    path = re.search(r"(?:file:)?(/[^\s:()'\"]+)", denied)
    place = re.sub(r"/_temporary/.*", "", path.group(1)) if path else "the folder"
    return EngineError(f"{place} cannot be written or read", fix="check its permissions")


def _bad_value(failure: Failure, _: str) -> EmatixError | None:
    given = failure.parameters
    condition = failure.condition
    if condition in ("CAST_INVALID_INPUT", "CAST_OVERFLOW"):
        # Spark writes a BIGINT as it would in SQL: 99L.
        number = given.get("value", "").rstrip("LSYD")
        value = _shortened(given.get("expression") or number)
        target = given.get("targetType", "").strip('"')
        if not value:
            return BadValue(failure.root, fix="correct the value or the column's type")
        verb = "is not a valid" if condition == "CAST_INVALID_INPUT" else "is too large for"
        return BadValue(f"{value} {verb} {target}", fix="correct the value or the column's type")
    if condition.startswith("NUMERIC_VALUE_OUT_OF_RANGE") and "precision" in given:
        target = f"DECIMAL({given['precision']},{given.get('scale', '0')})"
        value = _shortened(given.get("value", "a value"))
        return BadValue(f"{value} does not fit {target}", fix="widen the column or round the value")
    if condition.startswith(("ARITHMETIC_OVERFLOW", "DIVIDE_BY_ZERO", "INTERVAL_ARITHMETIC")):
        said = clean(failure.message).split(". ")[0]
        return BadValue(
            f"{said[:1].lower()}{said[1:]} while computing a column",
            fix="guard against it in the query, with nullif() or try_divide() for one",
        )
    if condition.startswith(("CANNOT_PARSE", "INVALID_", "MALFORMED")) and _about_rows(condition):
        return BadValue("a value cannot be read as its column's type", fix=_WHERE_TO_LOOK)
    return None


_WHERE_TO_LOOK = "check the source's values against the declared columns"


def _about_rows(condition: str) -> bool:
    return any(word in condition for word in ("TIMESTAMP", "DATETIME", "DECIMAL", "RECORD", "JSON"))


def _file(failure: Failure, connection: str) -> EmatixError | None:
    if failure.condition == "PATH_NOT_FOUND":
        path = _plain(failure.parameters.get("path", "")) or clean(failure.message)
        return DataError(f"there is no file or folder {path}", fix="check the path")
    if not failure.condition.startswith("FAILED_READ_FILE"):
        return None
    found = failure.says("while reading file ") or ""
    match = re.search(r"while reading file (\S+)", found)
    path = _plain(match.group(1).rstrip(".")) if match else "a source file"
    if failure.condition.endswith("FILE_NOT_EXIST") or failure.thrown("FileNotFoundException"):
        return Transient(
            f"{path} was removed while it was read",
            connection=connection,
            fix="run again, to read what is there now",
        )
    if failure.says("MALFORMED_"):
        return BadValue(f"{path} has a record that does not fit its columns", fix=_WHERE_TO_LOOK)
    if failure.says("CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "footer", "magic number"):
        return DataError(
            f"{path} is not a complete Parquet or ORC file (truncated, corrupt or another format)",
            fix="replace the file or leave it out",
        )
    return DataError(
        f"{path} cannot be read and is probably damaged ({failure.root})", fix="replace the file"
    )


def _database(failure: Failure, connection: str) -> EmatixError | None:
    link = failure.thrown("SQLException", "PSQLException", "BatchUpdateException")
    network = failure.thrown(
        "ConnectException", "UnknownHostException", "SocketTimeoutException", "NoRouteToHost"
    )
    if link is None and network is None and not failure.condition.startswith("FAILED_JDBC"):
        return None
    text = (clean(link[1]) if link else failure.root).removeprefix("ERROR: ")
    if network is not None:
        if network[0].endswith("UnknownHostException"):
            return Permanent(
                f"the host {network[1]} is unknown", connection=connection, fix="check the host"
            )
        return Transient(text, connection=connection, fix="check that the server is up")
    for said, sentence in _REFUSALS.items():
        if said in text:
            return Permanent(sentence, connection=connection, fix=f"the server says: {text}")
    if any(passing in text for passing in _PASSING):
        return Transient(text, connection=connection, fix="run again")
    return Permanent(text, connection=connection, fix="correct the SQL or the rows it reads")


_PASSING = (
    "deadlock",
    "terminating connection",
    "too many clients",
    "I/O error",
    "rewritten while it was read",
    "invalid snapshot identifier",
)
_REFUSALS = {
    "password authentication failed": "the user or password is wrong",
    "Access denied": "the user or password is wrong",
    "no pg_hba.conf entry": "the server does not admit this user from here",
    "permission denied": "the user lacks a right",
}


def _query(failure: Failure, _: str) -> EmatixError | None:
    given = failure.parameters
    if failure.condition.startswith("UNRESOLVED_COLUMN"):
        known = given.get("proposal", "").replace("`", "")
        return DataError(
            f"there is no column {given.get('objectName', '').replace('`', '')!r}",
            fix=f"the nearest are: {known}" if known else "check the name",
        )
    if failure.condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = given.get("relationName", "").replace("`", "")
        return DataError(f"there is no table or view {name!r}", fix="check the name")
    if failure.condition.startswith("UNRESOLVED_ROUTINE"):
        name = given.get("routineName", "").replace("`", "").lower()
        return DataError(f"there is no function {name!r}", fix="check the name")
    if failure.condition == "PARSE_SYNTAX_ERROR":
        return DataError(f"the SQL is not valid: {clean(failure.message)}", fix="correct the query")
    if failure.condition == "DATA_SOURCE_NOT_FOUND":
        match = re.search(r"data source: (\S+?)\.? ", f"{failure.message} ")
        name = match.group(1) if match else "this one"
        return EngineError(f"Spark has no data source {name!r}", fix="check the format's name")
    if failure.thrown("ClassNotFoundException"):
        return EngineError(f"Spark lacks a class it needs: {failure.root}", fix="name its jar")
    if type(failure.error).__name__ in ("AnalysisException", "ParseException"):
        return DataError(clean(failure.message), fix="correct the query")
    return None


def _spark(failure: Failure, _: str) -> EmatixError | None:
    if failure.condition == "USER_RAISED_EXCEPTION":
        said = failure.parameters.get("errorMessage") or failure.root
        return DataError(said, fix="correct the rows in the source, or change the declaration")
    if failure.chain or failure.condition:
        text = failure.root
        return EngineError(f"Spark failed: {text or type(failure.error).__name__}")
    return None


def _unknown(failure: Failure) -> EmatixError:
    error = failure.error
    text = clean(failure.message)
    name = type(error).__name__
    return EngineError(f"{name}: {text}" if text else name, where=_user_frame(error.__traceback__))


_RULES: tuple[Callable[[Failure, str], EmatixError | None], ...] = (
    _cancelled,
    _jvm_gone,
    _server_gone,
    _python_function,
    _python_crash,
    _out_of_memory,
    _disk,
    _bad_value,
    _file,
    _database,
    _query,
    _spark,
)


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"


def _plain(path: str) -> str:
    return re.sub(r"^file:/*", "/", path)


def _is_library(file: str) -> bool:
    return "site-packages" in file or "/pyspark/" in file or file.startswith("<")


def _passes(error: BaseException, package: str) -> bool:
    return any(name.split(".")[0] == package for name, _ in _frames(error.__traceback__))


def _user_frame(traceback: TracebackType | None) -> SourceLocation | None:
    places = [
        place
        for _, place in _frames(traceback)
        if not _is_library(place.file) and not place.file.startswith(_PACKAGE)
    ]
    return places[-1] if places else None


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, SourceLocation]]:
    while traceback is not None:
        frame = traceback.tb_frame
        name = str(frame.f_globals.get("__name__", ""))
        yield name, SourceLocation(frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
