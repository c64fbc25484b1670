"""What an engine offers, whichever way it reaches Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.plans import AnalysedPlan

    RowTask = Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


@dataclass(frozen=True)
class Progress:
    """How far the Spark work of one job has come. Totals grow while Spark plans on."""

    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0
    active: bool = False


class Job(Protocol):
    """The Spark work that one thread starts inside ``with engine.job(...)``."""

    @property
    def description(self) -> str:
        """What the job is, in words."""

    def cancel(self) -> None:
        """Stop its running Spark work; callable from any thread."""

    def progress(self) -> Progress:
        """How far it has come; callable from any thread."""


class Engine(Protocol):
    """A Spark session and the few things that differ between its kinds."""

    @property
    def kind(self) -> str:
        """``spark``, ``spark-connect`` or ``sail``."""

    @property
    def spark(self) -> SparkSession:
        """The session."""

    @property
    def alive(self) -> bool:
        """Whether the session can still be used."""

    def require_jars(self, names: Sequence[str]) -> None:
        """Make the connector jars of these names usable from now on."""

    def delta_session(self) -> SparkSession:
        """A session in which Delta tables can be read; the same one for all."""

    def delta_commit(self) -> AbstractContextManager[SparkSession]:
        """A session for one commit to a Delta table, whose settings nobody else sees."""

    def copy_rows(self, rows: DataFrame, task: RowTask, *, most: int) -> tuple[int, int]:
        """Let a task take all rows, part by part; how many rows and bytes it says it took.

        There are at most so many parts: each may hold a connection.
        """

    def analysed_plan(self, rows: DataFrame) -> AnalysedPlan | None:
        """The plan of these rows before it is optimised; None where Spark does not tell."""

    def job(self, description: str) -> AbstractContextManager[Job]:
        """Mark all Spark work that this thread starts inside the block as one job."""

    def cancel_all(self) -> None:
        """Stop all running Spark work of this engine."""

    def stop(self) -> None:
        """Give back what the engine holds. A session made by the user stays up."""


def copied_by_tasks(rows: DataFrame, task: RowTask, *, most: int) -> tuple[int, int]:
    """Every Spark task hands its partition over."""
    copied = rows.coalesce(max(1, most)).mapInArrow(task, "rows BIGINT, bytes BIGINT")
    done = copied.selectExpr("sum(rows)", "sum(bytes)").first()
    return (done[0] or 0, done[1] or 0) if done else (0, 0)
