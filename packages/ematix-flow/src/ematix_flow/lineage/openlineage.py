"""Events in the form of OpenLineage 2.0: what a run is, what it reads, what it makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ematix_flow.errors import Cancelled
from ematix_flow.lineage.edges import ANY, DIRECT, Lineage, Origin, kind_of
from ematix_flow.lineage.names import Names
from ematix_flow.lineage.pipelines import Declared
from ematix_flow.model import Table
from ematix_flow.redaction import redact_text

_SPEC = "https://openlineage.io/spec"
_FACETS = {
    "ColumnLineageDatasetFacet": "1-2-0",
    "DocumentationJobFacet": "1-1-0",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "ProcessingEngineRunFacet": "1-1-1",
    "SQLJobFacet": "1-1-0",
    "SchemaDatasetFacet": "1-2-0",
}
_SUBTYPES = {
    "filter": "FILTER",
    "group": "GROUP_BY",
    "join": "JOIN",
    "sort": "SORT",
    "window": "WINDOW",
}


@dataclass(frozen=True)
class Output:
    """A target of a run, with what is known of it at the moment of the event."""

    label: str
    table: Table
    lineage: Lineage | None = None
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class EventWriter:
    """Writes the events of one run of one pipeline."""

    namespace: str
    pipeline: str
    run_id: str
    version: str
    names: Names
    declared: Declared
    description: str = ""

    def event(
        self,
        state: str,
        at: datetime,
        outputs: Sequence[Output],
        *,
        query: str | None = None,
        dialect: str | None = None,
        engine: str | None = None,
        error: BaseException | None = None,
    ) -> dict[str, Any]:
        """One event; every text in it is free of secrets."""
        run_facets: dict[str, Any] = {}
        if engine is not None:
            told = {"version": self.version, "name": engine}
            run_facets["processing_engine"] = self._facet("ProcessingEngineRunFacet", told)
        if error is not None:
            said = {"message": redact_text(str(error)), "programmingLanguage": "Python"}
            run_facets["errorMessage"] = self._facet("ErrorMessageRunFacet", said)
        held = {
            "eventType": state,
            "eventTime": at.isoformat(),
            "producer": self._producer,
            "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
            "run": {"runId": self.run_id, "facets": run_facets},
            "job": self._job(query, dialect),
            "inputs": self._inputs(outputs),
            "outputs": [self._output(output) for output in outputs],
        }
        return held

    @property
    def _producer(self) -> str:
        return f"urn:ematix-flow:{self.version}"

    def _facet(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{_SPEC}/facets/{_FACETS[name]}/{name}.json#/$defs/{name}"
        return {"_producer": self._producer, "_schemaURL": url, **fields}

    def _job(self, query: str | None, dialect: str | None) -> dict[str, Any]:
        kind = {"processingType": "BATCH", "integration": "EMATIX_FLOW", "jobType": "PIPELINE"}
        facets = {"jobType": self._facet("JobTypeJobFacet", kind)}
        if self.description:
            told = {"description": redact_text(self.description)}
            facets["documentation"] = self._facet("DocumentationJobFacet", told)
        if query is not None:
            said = {"query": redact_text(query), **({"dialect": dialect} if dialect else {})}
            facets["sql"] = self._facet("SQLJobFacet", said)
        return {"namespace": self.namespace, "name": self.pipeline, "facets": facets}

    def _inputs(self, outputs: Iterable[Output]) -> list[dict[str, Any]]:
        tables = {t for o in outputs if o.lineage is not None for t in o.lineage.sources}
        return [self._input(table) for table in sorted(tables)]

    def _input(self, table: str) -> dict[str, Any]:
        facets = {}
        columns = self.declared(table)
        if columns:
            fields = [{"name": name} for name in columns]
            facets["schema"] = self._facet("SchemaDatasetFacet", {"fields": fields})
        return {**self._dataset(table), "facets": facets}

    def _output(self, output: Output) -> dict[str, Any]:
        fields = [{"name": c.name, "type": str(c.type)} for c in output.table.columns]
        facets = {"schema": self._facet("SchemaDatasetFacet", {"fields": fields})}
        if output.lineage is not None:
            facets["columnLineage"] = self._facet(
                "ColumnLineageDatasetFacet", self._columns(output.lineage)
            )
        held: dict[str, Any] = {**self._dataset(output.label), "facets": facets}
        counted = {"rowCount": output.rows, "size": output.bytes}
        known = {name: number for name, number in counted.items() if number is not None}
        if known:
            counts = self._facet("OutputStatisticsOutputDatasetFacet", known)
            held["outputFacets"] = {"outputStatistics": counts}
        return held

    def _columns(self, lineage: Lineage) -> dict[str, Any]:
        fields = {
            name: {"inputFields": self._fields(origins)}
            for name, origins in lineage.columns.items()
        }
        return {"fields": fields, "dataset": self._fields(lineage.rows)}

    def _fields(self, origins: Iterable[Origin]) -> list[dict[str, Any]]:
        """Each column once, with all the ways in which it takes part."""
        hows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for origin in sorted(origins):
            if origin.column == ANY:
                continue
            way: dict[str, Any] = {"type": kind_of(origin.how).upper()}
            if kind_of(origin.how) != DIRECT:
                way["subtype"] = _SUBTYPES[origin.how]
            hows.setdefault((origin.table, origin.column), []).append(way)
        return [
            {**self._dataset(table), "field": column, "transformations": ways}
            for (table, column), ways in hows.items()
        ]

    def _dataset(self, label: str) -> dict[str, str]:
        namespace, name = self.names.dataset(label)
        return {"namespace": namespace, "name": name}


def state_of(error: BaseException | None) -> str:
    """The event that ends a run."""
    if error is None:
        return "COMPLETE"
    return "ABORT" if isinstance(error, Cancelled | KeyboardInterrupt) else "FAIL"
