"""Databases that live in a file beside us: rows wait as Parquet until the commit loads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.base import Load, Staged
from ematix_flow.backends.sql import SqlBackend, SqlLanding
from ematix_flow.backends.staging import StageFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine


def stage_root(file: Path) -> Path:
    """The hidden folder beside a database file where runs stage their rows."""
    return file.with_name(f".{file.name}.stage")


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
        """The declared columns as Spark SQL, in the form this database loads."""
        from ematix_flow.sql.spark import quote

        return [quote(name) for name in self.load.table.column_names]

    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Write the declared columns; the commit adds the rest."""
        import pyarrow.parquet as pq

        self.load.announce("staging")
        self.folder = StageFolder(self.root, self.load.run.run_id)
        target = self.folder.path / "rows"
        rows.selectExpr(*self.staged_columns()).write.parquet(str(target))
        files = sorted(target.glob("*.parquet"))
        count = sum(pq.read_metadata(f).num_rows for f in files)
        self.load.announce("staged")
        return Staged(count, sum(f.stat().st_size for f in files), target)
