"""What ``delete_when=`` and ``order_by=`` say of incoming rows, checked before one is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp, tokenize
from sqlglot.optimizer.annotate_types import annotate_types

from ematix_flow import types as t
from ematix_flow.connections import nearest
from ematix_flow.errors import DataError, DeclarationError
from ematix_flow.model import Column, LoadOptions
from ematix_flow.sql.predicates import columns_in, condition, ordering

_VALUES = (
    *(exp.Literal, exp.Null, exp.Neg, exp.Tuple),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe),
)
_TRUTH = (exp.DataType.Type.BOOLEAN, exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL)


def named_by_deletes(options: LoadOptions) -> list[str]:
    """The columns that ``delete_when`` names; none where it cannot be told by its text."""
    if options.delete_when is None:
        return []
    return columns_in(condition(options.delete_when, "delete_when"))


def check_conditions(
    options: LoadOptions, columns: Sequence[Column], given: Mapping[str, t.ColumnType | None]
) -> None:
    """Refuse conditions and orders on columns that are not there, and what is neither.

    ``columns`` are loaded; ``given`` are all that a row has once it is normalized.
    """
    if options.delete_when is not None:
        _check_deletes(options.delete_when, columns, given)
    if options.order_by is not None:
        _check_order(options.order_by, [c.name for c in columns])


def _check_deletes(
    text: str, columns: Sequence[Column], given: Mapping[str, t.ColumnType | None]
) -> None:
    parsed = condition(text, "delete_when")
    for name in columns_in(parsed):
        if name not in given:
            raise DataError(
                f"delete_when= names {name!r}, which is not a column of the source or the target",
                fix=nearest(name, given),
            )
    inner = parsed.unnest()
    if isinstance(inner, exp.Column):
        kind = given.get(inner.name)
        declared = {c.name: c.type for c in columns}.get(inner.name, kind)
        if kind is None or isinstance(declared, t.Boolean):
            return
        said = f", because column {inner.name!r} is {kind}"
    elif isinstance(inner, _VALUES) or not _may_be_true(inner):
        said = ""
    else:
        return
    raise DeclarationError(
        f"delete_when={text!r} is neither true nor false{said}",
        fix="write a condition, for example delete_when=\"op = 'D'\"",
    )


def _may_be_true(expression: exp.Expr) -> bool:
    found = annotate_types(expression.copy(), dialect="spark").type
    return found is None or found.this in _TRUTH


def _check_order(text: str, loaded: Sequence[str]) -> None:
    held = {name.lower() for name in loaded}
    for expression, _ in ordering(text, "order_by"):
        named = columns_in(expression)
        if not named:
            raise DeclarationError(
                f"order_by={text!r} orders by something that is no column",
                fix='write columns such as "updated_at desc"',
            )
        for name in named:
            if name.lower() not in held:
                raise DataError(
                    f"order_by= names {name!r}, which is not a column that is loaded",
                    fix=f"declare it in the table, or order by another; {nearest(name, loaded)}",
                )
    if any(word.text.upper() == "NULLS" for word in tokenize(text, read="spark")):
        raise DeclarationError(
            f"order_by={text!r} says where NULL goes, which is fixed: it counts as the smallest",
            fix="remove NULLS FIRST or NULLS LAST",
        )
