"""Which features the tests of this folder have proven on which backend.

``docs/reference/support.json`` holds what was proven last; a run with the variable ``RECORDING``
set writes it anew, and any other whole run fails where it and the results differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

RECORDING = "EMATIX_FLOW_RECORD_SUPPORT"
RECORD = Path(__file__).parents[4] / "docs" / "reference" / "support.json"

FEATURES = {
    "test_sources": "source",
    "test_append": "append",
    "test_truncate": "truncate",
    "test_merge": "merge",
    "test_deletes": "deletes",
    "test_scd2": "scd2",
    "test_scd2_events": "scd2 by event time",
    "test_incremental": "incremental",
    "test_backfill": "backfill",
    "test_transforms": "transforms",
    "test_fan_out": "fan-out",
    "test_evolution": "schema evolution",
    "test_plan": "plan and apply",
    "test_paths": "same database",
}

Matrix = dict[str, list[str]]


class Proof:
    """The outcomes of one session, by feature and backend."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str], bool] = {}

    def note(self, node: str, *, passed: bool) -> None:
        """Take the outcome of one test, if it is about a feature of a backend."""
        module, _, name = node.partition("::")
        feature = FEATURES.get(Path(module).stem)
        if feature is None or "[" not in name or Path(module).parent.name != "conformance":
            return
        backend = name.rpartition("[")[2].rstrip("]").split("-")[0]
        key = (feature, backend)
        self._passed[key] = self._passed.get(key, True) and passed

    def matrix(self) -> Matrix:
        """The features that every test of theirs has proven, by backend."""
        found: Matrix = {}
        for (feature, backend), passed in sorted(self._passed.items()):
            if passed:
                found.setdefault(backend, []).append(feature)
        return found

    def covers(self, record: Mapping[str, list[str]]) -> bool:
        """Whether this session has tried everything that the record knows."""
        tried = {(backend, feature) for feature, backend in self._passed}
        return {(b, f) for b, features in record.items() for f in features} <= tried


def read_record() -> Matrix:
    """What was proven last."""
    if not RECORD.exists():
        return {}
    held: Matrix = json.loads(RECORD.read_text(encoding="utf-8"))
    return held


def write_record(matrix: Matrix) -> None:
    """Keep what has been proven now."""
    RECORD.write_text(json.dumps(matrix, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
