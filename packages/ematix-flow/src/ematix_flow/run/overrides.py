"""``.sync(**overrides)``: load options changed for one run, checked like the declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.declaring import check_mode, load_options
from ematix_flow.errors import DeclarationError, UnknownName
from ematix_flow.model import LoadOptions, PipelineSpec


def with_overrides(spec: PipelineSpec, overrides: Mapping[str, Any]) -> PipelineSpec:
    """The pipeline with some of its load options replaced."""
    if not overrides:
        return spec
    known = ["mode", *(f.name for f in dataclasses.fields(LoadOptions))]
    for name in overrides:
        if name not in known:
            raise UnknownName(
                f"pipeline {spec.name!r} has no load option {name!r}", fix=nearest(name, known)
            )
    mode = check_mode(overrides.get("mode", spec.targets[0].mode))
    given = {**spec.options.__dict__, **overrides, "mode": mode}
    try:
        options = load_options(given)
    except DeclarationError as error:
        error.what = f"pipeline {spec.name!r}: {error.what}"
        raise
    for column in options.keys or ():
        if column not in spec.targets[0].table.column_names:
            raise DeclarationError(
                f"keys= names {column!r}, which is not a column of {spec.targets[0].table.name}",
                fix=nearest(column, spec.targets[0].table.column_names),
            )
    targets = tuple(dataclasses.replace(target, mode=mode) for target in spec.targets)
    later = tuple(n for n in spec.not_yet if not n.startswith("mode="))
    if mode in ("merge", "scd1", "scd2"):
        later = (f"mode={mode!r}", *later)
    return dataclasses.replace(spec, options=options, targets=targets, not_yet=later)
