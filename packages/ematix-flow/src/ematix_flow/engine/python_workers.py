"""The process that forks the Python workers of one session on the warm engine.

Spark starts one per session. It takes over folder, import path and environment of the session's
client and then is PySpark's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_SESSION_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"
# What Spark tells its workers stays as Spark says it.
_SPARKS_OWN = ("SPARK_", "PYSPARK_", "PYTHON", "_PYSPARK_", "_SPARK_", "_EMATIX_FLOW_")


def become(client: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: the client's, with what Spark has to say to it."""
    given = client.get("environment")
    taken = {str(k): str(v) for k, v in given.items()} if isinstance(given, Mapping) else {}
    own = {name: text for name, text in environment.items() if name.startswith(_SPARKS_OWN)}
    kept = {name: text for name, text in taken.items() if not name.startswith(_SPARKS_OWN)}
    return {**kept, **own}


def main() -> None:
    """Take over what the client has, and fork workers until Spark hangs up."""
    from ematix_flow.engine.warm import SLOT_VARIABLE, Slot

    session = os.environ.get(_SESSION_VARIABLE, "")
    folder = os.environ.get(SLOT_VARIABLE, "")
    if session and folder:
        slot = Slot(Path(folder))
        with contextlib.suppress(OSError, ValueError):
            (slot.workers / f"{session}.{os.getpid()}").touch(mode=0o600)
            client = json.loads((slot.clients / session).read_bytes())
            environment = become(client, os.environ)
            path = [str(entry) for entry in client["path"]]
            environment["PYTHONPATH"] = os.pathsep.join(path)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
            os.chdir(str(client["folder"]))
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
