"""Databases that live in a file beside us: rows wait as Parquet until the commit loads them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.backends.base import Load, Staged
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.backends.sql_landing import SqlLanding
from ematix_flow.backends.staging import StageFolder
from ematix_flow.config import SAIL
from ematix_flow.connections.databases import FileDatabaseConnection
from ematix_flow.errors import EngineError, Permanent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine
    from ematix_flow.engine.wire import FarEngine
    from ematix_flow.model import PipelineSpec, TargetSpec


def stage_root(file: Path) -> Path:
    """The hidden folder beside a database file where runs stage their rows."""
    return file.with_name(f".{file.name}.stage")


class EmbeddedBackend(SqlBackend):
    """A database in one file, opened in this process."""

    @property
    def file(self) -> Path:
        """The database file."""
        return Path(cast(FileDatabaseConnection, self.connection).file()).expanduser().absolute()

    def connect(self, *, read_only: bool = False) -> Any:
        """Open the file; where there is nothing to read yet, an empty database instead."""
        if not self.file.parent.is_dir():
            raise Permanent(
                f"the folder {self.file.parent} does not exist",
                connection=self.name,
                fix="create it or correct path=",
            )
        return self.attach(None if read_only and not self.file.exists() else self.file)

    @abstractmethod
    def attach(self, file: Path | None) -> Any:
        """A driver connection to a file, or to an empty database in memory."""

    def creates_by_connecting(self) -> bool:
        """A file that is not there appears when it is opened."""
        return not self.file.exists()

    def info(self) -> dict[str, Any]:
        """The file."""
        return {"kind": self.kind, "path": str(self.file)}

    def needs_spark_to_read(self, spec: PipelineSpec) -> str | None:
        """It is spooled by this process, in the Spark form of every type."""
        return None

    def needs_spark_to_write(self, target: TargetSpec) -> str | None:
        """What is staged is Parquet; the database does the rest."""
        return None

    def same_database(self, other: Any) -> bool:
        """Whether both are the same file."""
        return type(other) is type(self) and self.file == other.file


class EmbeddedLanding(SqlLanding):
    """Stages rows as Parquet in a folder that dies with the run."""

    def __init__(self, backend: SqlBackend, load: Load, root: Path) -> None:
        super().__init__(backend, load)
        self.root = root
        self.folder: StageFolder | None = None

    def sweep(self) -> None:
        """Remove the folders of runs that are gone."""
        StageFolder.sweep(self.root)

    def remove_stage(self) -> None:
        """Remove this run's folder."""
        if self.folder is not None:
            self.folder.remove()

    def staged_columns(self) -> list[str]:
        """The staged columns as Spark SQL, in the form this database loads."""
        from ematix_flow.sql.spark import quote

        return [quote(name) for name in self.load.incoming_names]

    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Write the rows; the commit adds the columns of this system."""
        import pyarrow.parquet as pq

        self.load.announce("staging")
        self.folder = StageFolder(self.root, self.load.run.run_id)
        target = self.folder.path / "rows"
        staged = rows.selectExpr(*self.staged_columns())
        if getattr(engine, "distributed", False):
            from ematix_flow.engine.wire import fetched

            fetched(cast("FarEngine", engine), staged, target)
        else:
            # A space is a space to Spark, and %20 to Sail.
            sails = engine.kind == SAIL
            staged.write.parquet(target.as_uri() if sails else f"file:{target}")
        files = sorted(target.glob("*.parquet"))
        if not files and engine.kind == SAIL:
            files = [_no_rows(target, staged)]
        if not files:
            raise EngineError(
                f"the rows that Spark has written are not in {target}",
                fix="run it on a Spark that sees this machine's disk, with engine='local'",
            )
        count = sum(pq.read_metadata(f).num_rows for f in files)
        self.load.announce("staged")
        return Staged(count, sum(f.stat().st_size for f in files), target)


def _no_rows(folder: Path, rows: DataFrame) -> Path:
    """A file that only says which columns there are: Sail writes none where it has no rows."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    folder.mkdir(exist_ok=True)
    file = folder / "none.parquet"
    pq.write_table(schema.empty_table(), file)
    return file
