"""Changing DuckDB tables that exist: in place, or by a table made anew where a key forbids it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.sql_alterations import plain_alteration
from ematix_flow.backends.sql_rebuild import ColumnChange, rebuilt
from ematix_flow.change import CURRENT, SIDE
from ematix_flow.sql.identifiers import column_list, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ematix_flow.backends.base import Alteration, Load
    from ematix_flow.backends.sql import SqlBackend
    from ematix_flow.backends.sql_session import Session
    from ematix_flow.model import TableName

_IN_PLACE = ("rename", "drop", "add")


def alterations_in(backend: SqlBackend, session: Session, load: Load) -> list[str]:
    """The statements for all alterations of a load."""
    made: list[str] = []
    for relation in (CURRENT, SIDE):
        mine = [a for a in load.alterations if a.relation == relation]
        name = load.name if relation == CURRENT or load.side is None else load.side.name
        if mine:
            made += _alter_table(backend, session, name, mine)
    return made


def _alter_table(
    backend: SqlBackend, session: Session, name: TableName, alterations: Sequence[Alteration]
) -> list[str]:
    stuck = _stuck(session, _place(backend, name), alterations)
    made = _rebuild(backend, session, name, stuck) if stuck else []
    spelled = backend.locate(name, None)
    for alteration in alterations:
        if alteration not in stuck:
            made += plain_alteration(backend, spelled, alteration)
    return made


def _place(backend: SqlBackend, name: TableName) -> tuple[str, str]:
    return name.schema or backend.default_schema or "main", name.name


def _stuck(
    session: Session, place: tuple[str, str], alterations: Sequence[Alteration]
) -> list[Alteration]:
    """The alterations of columns under a key; all of them where the table has an index."""
    where = "WHERE schema_name = ? AND table_name = ? AND database_name = current_database()"
    keyed = {
        column
        for (columns,) in session.rows(
            f"SELECT constraint_column_names FROM duckdb_constraints() {where} "
            "AND constraint_type <> 'NOT NULL'",
            place,
        )
        for column in columns
    }
    indexed = bool(session.rows(f"SELECT 1 FROM duckdb_indexes() {where}", place))
    return [
        a
        for a in alterations
        if a.found is not None and a.act not in _IN_PLACE and (indexed or a.before in keyed)
    ]


def _rebuild(
    backend: SqlBackend, session: Session, name: TableName, stuck: Sequence[Alteration]
) -> list[str]:
    """The table made anew under another name, filled, and put in the old one's place."""
    changes: dict[str, ColumnChange] = {}
    values: dict[str, str] = {}
    for a in stuck:
        held = changes.get(a.before, ColumnChange())
        if a.act == "retype" and a.type is not None:
            stored = backend.stored_type(a.type)
            changes[a.before] = ColumnChange(stored, held.nullable)
            values[a.before] = f"CAST({quoted(a.before, 'duckdb')} AS {stored})"
        else:
            changes[a.before] = ColumnChange(held.type, a.act == "relax")
    place = _place(backend, name)
    where = "WHERE schema_name = ? AND table_name = ? AND database_name = current_database()"
    create = session.one(f"SELECT sql FROM duckdb_tables() {where}", place)
    kept = session.rows(f"SELECT sql FROM duckdb_indexes() {where}", place)
    columns = session.rows(
        f"SELECT column_name FROM duckdb_columns() {where} ORDER BY column_index", place
    )
    names = [column for (column,) in columns]
    old = backend.locate(name, None)
    new = backend.table(type(name)(name.schema, f"ematix_rebuilt__{name.name}"))
    spelled = new.sql(dialect="duckdb")
    listed = ", ".join(values.get(n, quoted(n, "duckdb")) for n in names)
    return [
        rebuilt(create, spelled, changes, dialect="duckdb"),
        f"INSERT INTO {spelled} ({column_list(names, 'duckdb')}) SELECT {listed} FROM {old}",
        f"DROP TABLE {old}",
        f"ALTER TABLE {spelled} RENAME TO {quoted(name.name, 'duckdb')}",
        *(sql for (sql,) in kept if sql),
    ]
