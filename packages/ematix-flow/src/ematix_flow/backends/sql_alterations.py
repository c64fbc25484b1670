"""Changing tables that exist: the statements most databases share, and what is checked first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ematix_flow.errors import BadValue, SchemaDrift, Transient
from ematix_flow.sql.identifiers import quoted

if TYPE_CHECKING:
    from ematix_flow.backends.base import Alteration, Load
    from ematix_flow.backends.sql import SqlBackend
    from ematix_flow.backends.sql_session import Session
    from ematix_flow.types import ColumnType


_CORRECT = "correct those values first, or change the declaration"


def plain_alteration(backend: SqlBackend, table: str, alteration: Alteration) -> list[str]:
    """One alteration as standard SQL has it."""
    column = quoted(alteration.column, backend.dialect)
    stored = backend.stored_type(alteration.type) if alteration.type else ""
    match alteration.act:
        case "rename":
            before = quoted(alteration.before, backend.dialect)
            change = f"RENAME COLUMN {before} TO {column}"
        case "drop":
            change = f"DROP COLUMN {column}"
        case "add":
            change = f"ADD COLUMN {column} {stored}"
        case "retype":
            value = f"CAST({column} AS {stored})"
            change = f"ALTER COLUMN {column} SET DATA TYPE {stored} USING {value}"
        case "relax":
            change = f"ALTER COLUMN {column} DROP NOT NULL"
        case _:
            change = f"ALTER COLUMN {column} SET NOT NULL"
    return [f"ALTER TABLE {table} {change}"]


def unfit_by_round_trip(backend: SqlBackend, column: str, was: ColumnType, new: ColumnType) -> str:
    """True for a stored value that is another one after the cast to its new type and back."""
    there = f"CAST({column} AS {backend.stored_type(new)})"
    back = f"CAST({there} AS {backend.stored_type(was)})"
    return f"{column} IS NOT NULL AND {back} <> {column}"


def check_alterations(backend: SqlBackend, session: Session, load: Load) -> None:
    """Refuse alterations whose table has moved on, or whose rows do not agree to them."""
    if backend.inspect_in(session, load.name) != load.found:
        raise Transient(
            f"table {load.name} was altered by somebody else while this run was under way",
            connection=backend.name,
            fix="run it again",
        )
    added = {(a.relation, a.column) for a in load.alterations if a.act == "add"}
    for alteration in load.alterations:
        condition, said = _objection(
            backend, alteration, is_new=(alteration.relation, alteration.column) in added
        )
        if condition is None:
            continue
        table = backend.relation(alteration.relation, load).sql(dialect=backend.dialect)
        rows = session.one(f"SELECT COUNT(*) FROM {table} WHERE {condition}")
        if rows:
            shown = "1 row" if rows == 1 else f"{rows} rows"
            raise SchemaDrift(
                backend.locate(load.name, load.prefix),
                [f"column {alteration.column!r} {said} {shown}"],
                fix=_CORRECT,
            )


@contextlib.contextmanager
def about_stored_rows(backend: SqlBackend, load: Load) -> Iterator[None]:
    """Let a value that the database refuses be told of as one that the table holds."""
    try:
        yield
    except BadValue as error:
        said = error.what.removeprefix(f"connection {backend.name!r}: ")
        raise SchemaDrift(
            backend.locate(load.name, load.prefix), [f"of the stored rows, {said}"], fix=_CORRECT
        ) from error


def _objection(
    backend: SqlBackend, alteration: Alteration, *, is_new: bool
) -> tuple[str | None, str]:
    column = quoted(alteration.before, backend.dialect)
    if alteration.act == "require":
        said = "is declared NOT NULL but would be NULL in"
        return ("TRUE" if is_new else f"{column} IS NULL"), said
    was, new = alteration.was, alteration.type
    if alteration.act == "retype" and alteration.risky and was is not None and new is not None:
        return backend.unfit(column, was, new), f"cannot become {new} because of its value in"
    return None, ""
