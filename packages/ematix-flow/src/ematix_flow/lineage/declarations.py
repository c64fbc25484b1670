"""Which columns a project declares of its tables, found by the tables' names in lineage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ematix_flow.lineage.names import Names
from ematix_flow.lineage.pipelines import Declared
from ematix_flow.model import PipelineSpec, TargetSpec


def declared_columns(specs: Iterable[PipelineSpec], names: Names) -> Declared:
    """Looks up a table among all that the pipelines load."""
    by_name: dict[str, list[TargetSpec]] = {}
    for spec in specs:
        for target in spec.targets:
            by_name.setdefault(target.table.name.name.lower(), []).append(target)

    def columns(label: str) -> Sequence[str]:
        # Few tables share a name, so that few have to be placed to be compared.
        last = label.rpartition("/")[2].rpartition(".")[2].lower()
        for target in (*by_name.get(last, ()), *_of_schema(last)):
            placed = names.table(target.connection, target.table.name, target.prefix)
            if names.key(placed) == names.key(label):
                held: tuple[str, ...] = target.table.column_names
                return held
        return ()

    def _of_schema(last: str) -> list[TargetSpec]:
        """SQLite writes the schema into the name of the table."""
        return by_name.get(last.partition("__")[2], []) if "__" in last else []

    return columns
