"""DuckDB's errors, by class and text, as one sentence each."""

from __future__ import annotations

import re
from pathlib import Path

from ematix_flow.errors import BadValue, EmatixError, Permanent, Transient
from ematix_flow.redaction import redact_text

_CLASS = re.compile(r"^[A-Z]\w+(?: \w+)* Error: ")
_SOURCE_COLUMN = re.compile(r" when casting from source column (?P<column>.+)$")
_MISSING = re.compile(r"NOT NULL constraint failed: [^.]+\.(?P<column>.+)$")
_OWN_SCHEMAS = ("pg_catalog.", "information_schema.", "duckdb_", "pragma_", "sqlite_")
_IN_SOURCE = "correct the rows in the source, or change the declaration"


def translate(error: Exception, connection: str, file: Path) -> EmatixError | None:
    """The error as one of ours; None where DuckDB did not raise it."""
    import duckdb

    if not isinstance(error, duckdb.Error):
        return None
    lines = redact_text(str(error)).splitlines() or [type(error).__name__]
    text = _CLASS.sub("", lines[0]).rstrip("!.")
    hint = lines[1] if len(lines) > 1 and lines[1].startswith(("Did you", "Candidate")) else ""
    if isinstance(error, duckdb.ConstraintException | duckdb.ConversionException):
        return BadValue(f"connection {connection!r}: {_about_rows(text)}", fix=_IN_SOURCE)
    if isinstance(error, duckdb.OutOfRangeException):
        return BadValue(f"connection {connection!r}: {text}", fix=_IN_SOURCE)
    if isinstance(error, duckdb.CatalogException) and not file.exists():
        return Permanent(
            f"{text}: there is no file {file} yet",
            connection=connection,
            fix="correct path=, or load that table first",
        )
    if isinstance(error, duckdb.CatalogException | duckdb.BinderException):
        # Where nothing of the user's is alike, DuckDB offers tables of its own.
        close = hint and not any(name in hint for name in _OWN_SCHEMAS)
        fix = f"{hint[:1].lower()}{hint[1:]}" if close else "check the names in the SQL"
        return Permanent(text, connection=connection, fix=fix)
    if isinstance(error, duckdb.ParserException):
        return Permanent(text, connection=connection, fix="correct the SQL")
    # A full disk during COMMIT comes as a TransactionException.
    if isinstance(error, duckdb.IOException) or "No space left" in text:
        return _about_the_file(text, connection, file)
    if "read-only mode" in text:
        return Permanent(
            f"the file {file} cannot be written",
            connection=connection,
            fix="check the permissions of the file and its folder",
        )
    if "already attached" in text:
        return Transient(
            f"the file {file} is being closed by other code of this process",
            connection=connection,
            fix="run again",
        )
    if isinstance(error, duckdb.TransactionException):
        return Transient(text, connection=connection, fix="run again")
    if isinstance(error, duckdb.InvalidInputException):
        # What a query refuses by itself, through DuckDB's error() function for one.
        return BadValue(f"connection {connection!r}: {text}", fix=_IN_SOURCE)
    return Permanent(text, connection=connection, fix="correct the SQL or the rows it reads")


def _about_rows(text: str) -> str:
    """A refused value, with its column first."""
    missing = _MISSING.search(text)
    if missing:
        return f"column {missing['column']!r} is NULL in the source but declared NOT NULL"
    cast = _SOURCE_COLUMN.search(text)
    if cast:
        return f"column {cast['column']!r}: {text[: cast.start()]}"
    return text


def _about_the_file(text: str, connection: str, file: Path) -> EmatixError:
    lowered = text.lower()
    if "lock" in lowered:
        return Transient(
            f"the file {file} is in use by another process",
            connection=connection,
            fix="close the other program that has it open and run again",
        )
    if "no space left" in lowered or "disk quota" in lowered:
        return Permanent(
            f"the disk of {file} is full", connection=connection, fix="free some space"
        )
    if "is a directory" in lowered:
        return Permanent(
            f"{file} is a folder, not a file", connection=connection, fix="correct path="
        )
    if "not a valid duckdb database" in lowered:
        return Permanent(
            f"{file} is not a DuckDB database", connection=connection, fix="correct path="
        )
    if "could not read enough bytes" in lowered or "corrupt" in lowered:
        return Permanent(
            f"the file {file} is damaged or cut off", connection=connection, fix="restore the file"
        )
    if "permission denied" in lowered or "read-only file system" in lowered:
        return Permanent(
            f"the file {file} cannot be opened for writing",
            connection=connection,
            fix="check the permissions of the file and its folder",
        )
    return Permanent(text, connection=connection, fix="check the file and the disk")
