"""Delta Lake in Spark: what a session is started with, and sessions to borrow for a commit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = "delta"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
EXTENSIONS = "spark.sql.extensions"
_CATALOG = "spark.sql.catalog.spark_catalog"
_SESSION = {
    _CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default of 50 tasks per look at a log is meant for tables of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # What is merged has been spooled already; Delta would keep one more copy of it.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_PRIVATE = (
    "spark.databricks.delta.commitInfo.userMetadata",
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
)


def start_conf(jars: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """What a context that has Delta's jars is started with; nothing without them."""
    if JARS not in jars:
        return {}
    others = [name for name in given.get(EXTENSIONS, "").split(",") if name.strip()]
    return {**_SESSION, EXTENSIONS: ",".join(dict.fromkeys((*others, EXTENSION)))}


def late_conf() -> dict[str, str]:
    """What a session needs whose context was started without Delta."""
    # Delta looks for its extension in the settings, and here it came by another way.
    return {**_SESSION, "spark.databricks.delta.requiredSparkConfsCheck.enabled": "false"}


def is_started(spark: SparkSession) -> bool:
    """Whether the session came up with Delta."""
    extensions = str(spark.conf.get(EXTENSIONS, "") or "")
    return EXTENSION in extensions and str(spark.conf.get(_CATALOG, "")) == _SESSION[_CATALOG]


class DeltaSessions:
    """Sessions that one commit has for itself: Delta takes a commit's details from settings."""

    def __init__(
        self,
        make: Callable[[], SparkSession],
        discard: Callable[[SparkSession], None] = lambda spark: None,
    ) -> None:
        self._make = make
        self._discard = discard
        self._lock = threading.Lock()
        self._free: list[SparkSession] = []

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[SparkSession]:
        """A session that nobody else uses inside the block."""
        with self._lock:
            spark = self._free.pop() if self._free else None
        if spark is None:
            spark = self._make()
        sound = False
        try:
            yield spark
            sound = True
        except Exception:
            sound = True
            raise
        finally:
            self._give_back(spark, sound=sound)

    def _give_back(self, spark: SparkSession, *, sound: bool) -> None:
        """Keep a session for the next commit, unless it was interrupted or cut off."""
        try:
            for key in _PRIVATE if sound else ():
                spark.conf.unset(key)
        except Exception:  # noqa: BLE001 - whatever it is, the next one gets a new session
            sound = False
        if not sound:
            self._discard(spark)
            return
        with self._lock:
            self._free.append(spark)

    def close(self) -> None:
        """Give back the free sessions."""
        with self._lock:
            free, self._free = self._free, []
        for spark in free:
            self._discard(spark)
