"""``.sync(**overrides)``: load options changed for one run, checked like the declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.declaring_columns import check_column_options, check_target
from ematix_flow.declaring_options import check_mode, load_options
from ematix_flow.declaring_transforms import check_limits
from ematix_flow.errors import DeclarationError, UnknownName
from ematix_flow.model import LoadOptions, PipelineSpec, TargetSpec

# They go with incremental=True; a run that reads everything leaves them aside.
_OF_INCREMENTAL = ("watermark_column", "lookback", "null_watermark")


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
    try:
        targets = tuple(_overridden(target, overrides) for target in spec.targets)
        for target in targets:
            given = {**target.options.__dict__, "mode": target.mode}
            check_column_options(given, target.table)
            check_target(target, spec.location)
            check_limits(spec.transforms_pre, target)
    except DeclarationError as error:
        error.what = f"pipeline {spec.name!r}: {error.what}"
        raise
    single = targets[0].options if len(targets) == 1 else spec.options
    options = dataclasses.replace(single, **_own(overrides, targets[0].options))
    return dataclasses.replace(spec, options=options, targets=targets)


def _overridden(target: TargetSpec, overrides: Mapping[str, Any]) -> TargetSpec:
    mode = check_mode(overrides.get("mode", target.mode))
    held = dict(target.options.__dict__)
    if overrides.get("incremental") is False:
        held |= {name: getattr(LoadOptions(), name) for name in _OF_INCREMENTAL}
    given = {**held, **overrides, "mode": mode}
    return dataclasses.replace(target, mode=mode, options=load_options(given))


def _own(overrides: Mapping[str, Any], checked: LoadOptions) -> dict[str, Any]:
    """The overridden options as the checks have left them."""
    return {name: getattr(checked, name) for name in overrides if name != "mode"}
