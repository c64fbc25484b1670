"""The checks of options that name columns: keys, watermarks, and the names a mode adds itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.declaring_options import COLUMN_LISTS, KEYED_MODES
from ematix_flow.errors import DeclarationError, SourceLocation
from ematix_flow.model import (
    IS_CURRENT_COLUMN,
    ROW_HASH_COLUMN,
    VALID_FROM_COLUMN,
    VALID_TO_COLUMN,
    Table,
    TargetSpec,
    merge_key,
)
from ematix_flow.watermark import check_watermark

_VERSION_COLUMNS = (VALID_FROM_COLUMN, VALID_TO_COLUMN, IS_CURRENT_COLUMN, ROW_HASH_COLUMN)
_SINGLE = ("event_timestamp_column", "watermark_column", "incremental_column")


def check_column_options(given: Mapping[str, Any], table: Table) -> None:
    """Refuse options that name columns which the table does not have, or one of them twice."""
    named = [(o, n) for o in COLUMN_LISTS for n in given.get(o) or ()]
    named += [(o, given[o]) for o in _SINGLE if given.get(o)]
    for option, column in named:
        if column not in table.column_names:
            raise DeclarationError(
                f"{option}= names {column!r}, which is not a column of {table.name}",
                fix=nearest(str(column), table.column_names),
            )
        if named.count((option, column)) > 1:
            raise DeclarationError(f"{option}= names {column!r} twice", fix="name it once")


def check_target(spec: TargetSpec, where: SourceLocation) -> None:
    """Refuse a load whose options and whose table's columns do not go together."""
    _check_key(spec, where)
    _check_changing(spec)
    _check_version_columns(spec)
    options = spec.options
    if options.watermark_column is not None:
        kind = next(c.type for c in spec.table.columns if c.name == options.watermark_column)
        check_watermark(options.watermark_column, kind, options.lookback)


def _check_key(spec: TargetSpec, where: SourceLocation) -> None:
    """Refuse a keyed mode without a key, and say so when it is not the primary key."""
    lookback = spec.mode == "append" and spec.options.lookback is not None
    if lookback and not merge_key(spec.table, spec.options.keys):
        raise DeclarationError(
            f'lookback= with mode="append" needs a key, and {spec.table.name} has none',
            fix="mark columns with pk() or natural_key(), or give keys=",
        )
    if spec.mode not in KEYED_MODES or spec.options.keys:
        return
    table = spec.table
    chosen = merge_key(table, None)
    if not chosen:
        raise DeclarationError(
            f'mode="{spec.mode}" needs a key, and {table.name} has none',
            fix="mark columns with pk() or natural_key(), or give keys=",
        )
    if table.primary_key and set(chosen) != set(table.primary_key):
        origin = "__merge_keys__" if table.merge_keys else "natural_key()"
        warnings.warn_explicit(
            f"{table.name} is merged on {', '.join(chosen)} ({origin}), not on its primary key "
            f"{', '.join(table.primary_key)}; give keys= to choose",
            UserWarning,
            where.file,
            where.line,
        )


def _check_changing(spec: TargetSpec) -> None:
    """A key column is the same in both rows of a comparison: it neither differs nor changes."""
    if spec.mode not in KEYED_MODES:
        return
    key = merge_key(spec.table, spec.options.keys)
    lists = {
        "update_columns": spec.options.update_columns,
        "compare_columns": spec.options.compare_columns,
    }
    for option, columns in lists.items():
        for column in columns or ():
            if column in key:
                raise DeclarationError(
                    f"{option}= names {column!r}, which is part of the key and never changes",
                    fix=f"remove it from {option}=, or choose another key with keys=",
                )


def _check_version_columns(spec: TargetSpec) -> None:
    if spec.mode != "scd2":
        return
    for column in spec.table.column_names:
        if column.lower() in _VERSION_COLUMNS:
            raise DeclarationError(
                f'{spec.table.name} declares column {column!r}, which mode="scd2" adds itself '
                "to say when a version was valid",
                fix="remove it from the declaration, or give the source's column another name",
            )
