"""Spark, started and stopped in one place: settings, Java, jars, class archive, session.

Only this package knows how an in-process session and Spark Connect differ. Importing it
loads no pyspark; opening an engine does. Start with ``session.open_engine``.
"""

from __future__ import annotations

from ematix_flow.engine.failures import translate
from ematix_flow.engine.progress import live_progress
from ematix_flow.engine.session import (
    Engine,
    Job,
    Progress,
    current_engine,
    open_engine,
    prepare_engine,
)
from ematix_flow.engine.settings import EngineSettings, derive

__all__ = [
    "Engine",
    "EngineSettings",
    "Job",
    "Progress",
    "current_engine",
    "derive",
    "live_progress",
    "open_engine",
    "prepare_engine",
    "translate",
]
