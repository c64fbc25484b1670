"""What a load would take on more machines than there are here, from costs that were measured.

The formulas are explained in docs/concepts/scaling.md. Nothing here measures.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The example: nodes of eight cores, and a database server of sixteen.
NODE_CORES = 8
SERVER_CORES = 16
# Half of what a server with 100 connections has to spare is used to read, as the planner does.
DEFAULT_READS = 48
ROWS = 1_000_000_000
SCALE = 1000.0


@dataclass(frozen=True)
class Constants:
    """Seconds of forming, of one request to a peer, load, task, partition, row, scale factor."""

    form_one: float
    form_next: float
    request: float
    load: float
    task: float
    partition: float
    transformed_row: float
    copied_row: float
    inserted_row: float
    ingested_row: float
    scale: float

    @classmethod
    def of(
        cls, taken: Mapping[str, Sequence[float]], *, notes: int, many: int, scale: float
    ) -> Constants:
        """From what benchmarks/cluster.py has measured."""

        def seconds(name: str) -> float:
            return statistics.median(taken[name])

        load = seconds("few rows in 2, again: 1 worker")
        copied = seconds("copied: 1 worker")
        return cls(
            form_one=seconds("first task: 1 worker"),
            form_next=seconds("first task: 2 workers") - seconds("first task: 1 worker"),
            request=seconds("100 requests: 1 worker") / 100,
            load=load,
            task=(seconds("1100 tasks: 2 workers") - seconds("100 tasks: 2 workers")) / 1000,
            partition=(seconds("few rows in 50, again: 1 worker") - load) / 48,
            transformed_row=(seconds("transform: 1 worker") - load) / notes,
            copied_row=(copied - load) / many,
            inserted_row=max(0.0, seconds("copied, again: 1 worker") - copied) / many,
            ingested_row=seconds("COPY into one connection") / many,
            scale=seconds("tpch: 1 worker") / scale,
        )


def forming(constants: Constants, nodes: int) -> float:
    """The first peer is asked alone, all others together."""
    later = constants.form_next if nodes > 1 else 0.0
    return constants.form_one + later + 2 * nodes * constants.request


def transformed(constants: Constants, nodes: int, *, reads: int | None) -> dict[str, float]:
    """Rows through a CPU-bound transform into an existing table; ``reads`` caps connections."""
    slots = nodes * NODE_CORES
    parts = slots if reads is None else min(slots, reads)
    return {
        "form": forming(constants, nodes),
        "plan": constants.load,
        "work": max(
            ROWS * constants.transformed_row / parts,
            ROWS * constants.ingested_row / SERVER_CORES,
        )
        + constants.partition
        + parts * constants.task,
        "insert": ROWS * constants.inserted_row,
    }


def queried(constants: Constants, nodes: int) -> dict[str, float]:
    """The mix of TPC-H queries over files that all nodes see; results are small."""
    slots = nodes * NODE_CORES
    # Three queries of about four stages, with as many tasks as the input has blocks of 128 MiB.
    tasks = 12 * max(2 * slots, int(SCALE * 0.35 * 8))
    return {
        "form": forming(constants, nodes),
        "plan": 3 * constants.load,
        "work": SCALE * constants.scale / slots + tasks * constants.task,
        "insert": 0.0,
    }


def predicted(constants: Constants) -> str:
    """What the model says, as Markdown."""
    loads: dict[str, Callable[[int], dict[str, float]]] = {
        "transform": lambda nodes: transformed(constants, nodes, reads=None),
        f"transform, {DEFAULT_READS} connections": lambda nodes: transformed(
            constants, nodes, reads=DEFAULT_READS
        ),
        "TPC-H mix": lambda nodes: queried(constants, nodes),
    }
    lines = [
        "| load | nodes | form s | work s | insert s | all s | times as fast |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cost_on in loads.items():
        alone = sum(cost_on(1).values())
        for nodes in (1, 2, 10, 100):
            cost = cost_on(nodes)
            whole = sum(cost.values())
            lines.append(
                f"| {name} | {nodes} | {cost['form']:.0f} | {cost['plan'] + cost['work']:,.0f} | "
                f"{cost['insert']:,.0f} | {whole:,.0f} | {alone / whole:.1f} |"
            )
    return "\n".join(lines)


def measured(constants: Constants) -> str:
    """The constants, as Markdown."""
    rows = {
        "form: first": f"{constants.form_one:.1f} s",
        "form: next": f"{constants.form_next:.1f} s",
        "form: one request to a peer": f"{constants.request * 1e3:.1f} ms",
        "load": f"{constants.load * 1e3:.0f} ms",
        "task, driver and slot together": f"{constants.task * 1e3:.1f} ms",
        "partition written to PostgreSQL: connection, claim, commit": (
            f"{constants.partition * 1e3:.0f} ms"
        ),
        "row, with 60 digests": f"{constants.transformed_row * 1e6:.1f} µs",
        "row, only copied": f"{constants.copied_row * 1e6:.1f} µs",
        "ingest of a row": f"{constants.ingested_row * 1e6:.2f} µs",
        "insert of a row": f"{constants.inserted_row * 1e6:.2f} µs",
        "TPC-H mix, one scale factor on one core": f"{constants.scale:.1f} s",
    }
    return "\n".join(
        ["| cost | of one |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())]
    )


def renew(page: Path, constants: Constants) -> None:
    """Write both tables into the documentation."""
    text = page.read_text()
    for name, made in {
        "constants": measured(constants),
        "prediction": predicted(constants),
    }.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = place.sub(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)
    page.write_text(text)
