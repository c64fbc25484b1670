"""What keyed modes require of the incoming rows: a key without NULLs, one row for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.change import Assertion
from ematix_flow.errors import BadValue, DuplicateKeys, EmatixError
from ematix_flow.model import DELETED_COLUMN, Column, LoadOptions
from ematix_flow.modes.base import Shape
from ematix_flow.modes.sql import comparable, count_of, name, names, parsed

_SHOWN = 5


def deleted_flag(options: LoadOptions) -> bool:
    """Whether incoming rows say of themselves that they are deletes."""
    return options.delete_when is not None


def arriving(shape: Shape, options: LoadOptions) -> str:
    """The incoming rows, at most one for each key."""
    listed = names([c.name for c in shape.incoming])
    if options.duplicate_keys == "error":
        return f"SELECT {listed} FROM incoming"
    order = winner_order(shape.incoming, options)
    return (
        f"SELECT {listed} FROM (SELECT {listed}, ROW_NUMBER() OVER "
        f"(PARTITION BY {names(shape.key)} ORDER BY {order}) AS _em_place FROM incoming) AS ranked "
        "WHERE _em_place = 1"
    )


def winner_order(columns: Sequence[Column], options: LoadOptions) -> str:
    """The order in which the first row of a key wins; equal rows aside, it leaves no tie."""
    from sqlglot import exp, parse_one

    last = options.duplicate_keys == "last"
    wanted = parse_one(f"SELECT 1 ORDER BY {options.order_by}", dialect="spark").args["order"]
    given = [(o.this, bool(o.args.get("desc"))) for o in wanted.expressions]
    kinds = {c.name.lower(): c.name for c in columns}
    items = []
    for expression, descending in given:
        column = kinds.get(expression.name.lower()) if isinstance(expression, exp.Column) else None
        text = comparable(column) if column else expression.sql()
        items.append(f"{text} {'DESC' if descending != last else 'ASC'}")
    items += [f"{comparable(c.name)} {'DESC' if last else 'ASC'}" for c in columns]
    return ", ".join(items)


def requirements(
    shape: Shape, options: LoadOptions, *, one_each: bool, unique: Sequence[str] = ()
) -> tuple[Assertion, ...]:
    """Refuse NULL in a key and, where no policy chooses, several rows for one key.

    ``unique`` are the columns of the target in which a key of several rows would be twice.
    """
    nullable = [c.name for c in shape.incoming if c.name in shape.key and c.nullable]
    required = [_no_null(column) for column in nullable]
    if one_each and options.duplicate_keys == "error":
        required.append(_no_duplicates(shape.key, tuple(unique)))
    return tuple(required)


_LEAVE_OUT = "leave those rows out in the source SQL, or fill the column"


def no_null(column: str, what: str, *, fix: str = _LEAVE_OUT) -> Assertion:
    """Refuse rows in which a column that decides is NULL; ``what`` is its name for people."""

    def refuse(rows: Sequence[Sequence[Any]]) -> EmatixError:
        return BadValue(
            f"{what} is NULL in {rows[0][0]} rows of the source",
            fix=fix,
        )

    counted = count_of(where=f"{name(column)} IS NULL")
    return Assertion(parsed(f"SELECT n FROM ({counted}) AS counted WHERE n > 0"), refuse)


def _no_null(column: str) -> Assertion:
    return no_null(column, f"key column {column!r}")


def one_for_each(options: LoadOptions) -> bool:
    """Whether every incoming row is the one row of its key, and there to stay."""
    return options.duplicate_keys == "error" and not deleted_flag(options)


def _no_duplicates(key: Sequence[str], unique: tuple[str, ...]) -> Assertion:
    def refuse(rows: Sequence[Sequence[Any]]) -> EmatixError:
        shown = "; ".join(
            ", ".join(f"{k}={v}" for k, v in zip(key, row, strict=False)) + f" ({row[-1]} rows)"
            for row in rows
        )
        return DuplicateKeys(
            f"the source has several rows for one key: {shown}",
            fix='make the key unique in the source, or choose with duplicate_keys="last" '
            'and order_by="…"',
        )

    listed = names(key)
    found = (
        f"SELECT {listed}, COUNT(*) AS copies FROM incoming GROUP BY {listed} "
        f"HAVING COUNT(*) > 1 ORDER BY {listed} LIMIT {_SHOWN}"
    )
    return Assertion(parsed(found), refuse, unique=unique)


def live(options: LoadOptions, of: str = "i") -> str:
    """Whether an incoming row is there to stay."""
    return f"NOT {name(DELETED_COLUMN, of)}" if deleted_flag(options) else "TRUE"
