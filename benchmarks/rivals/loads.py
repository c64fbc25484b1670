"""What all systems of the cluster's benchmark are asked to do."""

from __future__ import annotations

# Each row costs as much processor time as sixty digests, and nothing else.
TRANSFORM = (
    "SELECT id, aggregate(sequence(1, 60), note, (held, i) -> sha2(held, 256)) AS note FROM source"
)
# Of TPC-H: one scan, one chain of joins, one aggregate over all orders.
MIX = ("q01", "q09", "q18")
