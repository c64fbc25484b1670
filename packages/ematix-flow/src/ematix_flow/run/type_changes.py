"""What becomes of stored values when their column's type changes."""

from __future__ import annotations

from ematix_flow import types as t

_WHOLE_DIGITS = {"small_int": 5, "integer": 10, "big_int": 19}
_INTEGERS = tuple(_WHOLE_DIGITS)
_FAMILIES = (
    (*_INTEGERS, "numeric", "any_numeric"),
    ("float", "double"),
    ("string", "text"),
)


def type_change(old: t.ColumnType | None, new: t.ColumnType) -> str:
    """``widen`` where all values stay, ``narrow`` where some may not fit, else ``retype``."""
    if old is None:
        return "retype"
    if widens(old, new):
        return "widen"
    return "narrow" if _family(old) is not None and _family(old) == _family(new) else "retype"


def widens(old: t.ColumnType, new: t.ColumnType) -> bool:
    """Whether every value of the old type is the same value of the new one."""
    if old == new:
        return True
    if isinstance(old, t.Array) and isinstance(new, t.Array):
        return widens(old.element, new.element)
    if old.kind in _INTEGERS and new.kind in _INTEGERS:
        return _WHOLE_DIGITS[old.kind] <= _WHOLE_DIGITS[new.kind]
    if isinstance(new, t.Numeric):
        whole = new.precision - new.scale
        if isinstance(old, t.Numeric):
            return new.scale >= old.scale and whole >= old.precision - old.scale
        return old.kind in _INTEGERS and whole >= _WHOLE_DIGITS[old.kind]
    if isinstance(old, t.String):
        return new.kind == "text" or (isinstance(new, t.String) and new.length >= old.length)
    return (old.kind, new.kind) == ("float", "double")


def convertible(old: t.ColumnType | None, new: t.ColumnType) -> bool:
    """Whether stored values can be turned into the new type, one by one."""
    if old is None or "bytes" in (old.kind, new.kind):
        return False
    if isinstance(old, t.Array) or isinstance(new, t.Array):
        nested = isinstance(old, t.Array) and isinstance(new, t.Array)
        return nested and widens(old, new)
    return t.assignable(old, new) or (_family(old) is not None and _family(old) == _family(new))


def _family(kind: t.ColumnType) -> int | None:
    if isinstance(kind, t.Array):
        inner = _family(kind.element)
        return None if inner is None else inner + len(_FAMILIES)
    return next((n for n, family in enumerate(_FAMILIES) if kind.kind in family), None)
