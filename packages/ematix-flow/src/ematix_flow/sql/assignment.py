"""Which values every engine converts alike, so that a load may stay inside a database."""

from __future__ import annotations

from ematix_flow import types as t
from ematix_flow.sql.normalizers import CannotMatch

_INTEGERS = ("small_int", "integer", "big_int")
_SAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_INTEGERS, (*_INTEGERS, "numeric", "double")),
    "float": ("float", "double"),
    "double": ("double",),
    "numeric": ("numeric", "double"),
    "any_numeric": ("numeric", "double"),
    "boolean": ("boolean",),
    "text": ("text", "string"),
    "string": ("text", "string"),
    "date": ("date", "timestamp", "timestamp_tz"),
    "time": ("time",),
    "timestamp": ("timestamp", "timestamp_tz"),
    "timestamp_tz": ("timestamp_tz",),
    "json": ("json", "jsonb"),
    "jsonb": ("json", "jsonb"),
    "uuid": ("uuid",),
    "bytes": ("bytes",),
}


def require_same(source: t.ColumnType, target: t.ColumnType) -> None:
    """Raise ``CannotMatch`` unless every engine converts ``source`` to ``target`` alike."""
    if isinstance(source, t.Array) and source == target:
        return
    if target.kind not in _SAME.get(source.kind, ()):
        raise CannotMatch(f"{source} is turned into {target} by Spark only")


def may_round(source: t.ColumnType, target: t.Numeric) -> bool:
    """Whether a number of type ``source`` may have more digits after the point than fit."""
    if isinstance(source, t.Numeric):
        return source.scale > target.scale
    return isinstance(source, t.AnyNumeric)
