"""Window functions as MariaDB computes them right: each a column of its own, never inside CASE."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.errors import Unsupported

_FROM = "from_" if "from_" in exp.Select.arg_types else "from"


def windows_apart(query: exp.Expr) -> exp.Expr:
    """The same query, with windows that are part of an expression moved into a subquery.

    MariaDB 10.11 takes ``CASE WHEN a <> LAG(a) … OR (b AND c <> LAG(c) …)`` for true throughout.
    """
    whole = query.copy()
    for select in list(whole.find_all(exp.Select)):
        nested = _nested(select)
        if not nested:
            continue
        if select.args.get("joins"):
            raise Unsupported("mysql cannot compute a window inside an expression over a join")
        _move(select, nested)
    return whole


def _nested(select: exp.Select) -> list[exp.Window]:
    return [
        window
        for projection in select.expressions
        for window in projection.find_all(exp.Window)
        if window is not projection.unalias() and window.find_ancestor(exp.Select) is select
    ]


def _move(select: exp.Select, windows: list[exp.Window]) -> None:
    source = select.args[_FROM]
    inner = exp.Select(expressions=[exp.Star()])
    inner.set(_FROM, source.copy())
    where = select.args.get("where")
    if where is not None:
        inner.set("where", where.copy())
        select.set("where", None)
    names: dict[str, str] = {}
    for window in windows:
        name = names.setdefault(window.sql(), f"_em_window_{len(names)}")
        if name == f"_em_window_{len(inner.expressions) - 1}":
            inner.append("expressions", exp.alias_(window.copy(), name))
        window.replace(exp.column(name))
    select.set(_FROM, exp.From(this=inner.subquery(source.this.alias_or_name)))
