"""``.sync(**overrides)``: load options changed for one run, checked like the declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.declaring import (
    check_column_options,
    check_keys,
    check_mode,
    load_options,
    not_yet,
)
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
    targets = tuple(dataclasses.replace(target, mode=mode) for target in spec.targets)
    try:
        options = load_options(given)
        for target in targets:
            check_column_options(given, target.table)
            check_keys(target, options.keys, spec.location)
    except DeclarationError as error:
        error.what = f"pipeline {spec.name!r}: {error.what}"
        raise
    before = not_yet({**spec.options.__dict__, "mode": spec.targets[0].mode})
    unchanged = [feature for feature in spec.not_yet if feature not in before]
    later = (*not_yet({**options.__dict__, "mode": mode}), *unchanged)
    return dataclasses.replace(spec, options=options, targets=targets, not_yet=later)
