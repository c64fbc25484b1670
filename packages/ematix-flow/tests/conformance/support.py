"""Which features the tests of this folder have proven on which backend.

``docs/reference/support.json`` holds what a whole run has proven; a run with the variable
``RECORDING`` set adds to it, and any other run fails where its results contradict it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
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
    """The outcomes of one session, by backend and feature."""

    def __init__(self, backends: Collection[str]) -> None:
        self._backends = backends
        self._passed: dict[tuple[str, str], bool] = {}

    def note(self, node: str, *, passed: bool) -> None:
        """Take the outcome of one test, if it is about a feature of a backend."""
        module, _, name = node.partition("::")
        feature = FEATURES.get(Path(module).stem)
        if feature is None or Path(module).parent.name != "conformance":
            return
        pieces = name.partition("[")[2].rstrip("]").split("-")
        for backend in (piece for piece in pieces if piece in self._backends):
            key = (backend, feature)
            self._passed[key] = self._passed.get(key, True) and passed

    def matrix(self) -> Matrix:
        """The features that every test of theirs has proven, by backend."""
        found: Matrix = {}
        for (backend, feature), passed in sorted(self._passed.items()):
            if passed:
                found.setdefault(backend, []).append(feature)
        return found

    def contradicts(self, record: Mapping[str, list[str]]) -> bool:
        """Whether the record says another thing of what this session has tried."""
        return any(
            passed != (feature in record.get(backend, ()))
            for (backend, feature), passed in self._passed.items()
        )


def read_record() -> Matrix:
    """What was proven last."""
    if not RECORD.exists():
        return {}
    held: Matrix = json.loads(RECORD.read_text(encoding="utf-8"))
    return held


def write_record(matrix: Matrix) -> None:
    """Keep what has been proven now."""
    RECORD.write_text(json.dumps(matrix, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
