"""Changing tables of MySQL and MariaDB that exist, column by column.

``MODIFY`` states a whole column anew, so that what it does not repeat is lost. A column whose type
stays is therefore taken from the server's own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow import types as t
from ematix_flow.backends.mysql_types import castable_type
from ematix_flow.backends.sql_alterations import plain_alteration
from ematix_flow.change import CURRENT
from ematix_flow.sql.identifiers import quoted

if TYPE_CHECKING:
    from ematix_flow.backends.base import Alteration, Load
    from ematix_flow.backends.mysql import MySQL
    from ematix_flow.backends.sql_session import Session

_WIDEST = "DECIMAL(65, 30)"


def alterations_in(backend: MySQL, session: Session, load: Load) -> list[str]:
    """The statements for all alterations of a load."""
    made: list[str] = []
    anew = {(a.relation, a.column) for a in load.alterations if a.act in ("add", "retype")}
    for alteration in load.alterations:
        relation = backend.relation(alteration.relation, load).sql(dialect=backend.dialect)
        if alteration.act in ("rename", "drop"):
            made += plain_alteration(backend, relation, alteration)
            continue
        same = (alteration.relation, alteration.column) not in anew
        told = _told(session, relation, alteration) if same else None
        whole = told or backend.column(
            alteration.column,
            alteration.type or t.Text(),
            nullable=alteration.nullable,
            keyed=alteration.column in _keyed(load, alteration.relation),
        )
        verb = "ADD" if alteration.act == "add" else "MODIFY"
        made.append(f"ALTER TABLE {relation} {verb} COLUMN {whole}")
    return made


def _keyed(load: Load, relation: str) -> set[str]:
    table = load.table if relation == CURRENT or load.side is None else load.side
    return {name for group in (table.primary_key, *table.unique_groups) for name in group}


def _told(session: Session, table: str, alteration: Alteration) -> str | None:
    """A column as the server states it, with the other nullability and its present name."""
    ((_, statement),) = session.rows(f"SHOW CREATE TABLE {table}")
    start = f"  {quoted(alteration.before, 'mysql')} "
    line = next((x for x in statement.splitlines() if x.startswith(start)), None)
    if line is None:
        return None
    stated = line.removeprefix(start).rstrip(",")
    if alteration.nullable:
        stated = stated.replace(" NOT NULL", " NULL", 1)
    elif " DEFAULT NULL" in stated:
        stated = stated.replace(" DEFAULT NULL", " NOT NULL", 1)
    else:
        ends = [stated.index(word) for word in (" COMMENT ", " CHECK ") if word in stated]
        place = min(ends, default=len(stated))
        stated = f"{stated[:place]} NOT NULL{stated[place:]}"
    return f"{quoted(alteration.column, 'mysql')} {stated}"


def unfit(column: str, was: t.ColumnType, new: t.ColumnType) -> str | None:
    """What a strict server would change without a word: it rounds, and refuses all else."""
    if isinstance(new, t.String):
        return f"CHAR_LENGTH({column}) > {new.length}"
    if isinstance(new, t.Float):
        return f"CAST({column} AS FLOAT) + 0e0 <> {column}"
    if isinstance(new, t.Numeric | t.SmallInt | t.Integer | t.BigInt):
        exact = column
        if isinstance(was, t.Text | t.String):
            exact = f"CAST({column} AS {_WIDEST})"
        return f"CAST({exact} AS {castable_type(new)}) <> {exact}"
    return None
