"""What the warm engine is worth: `flow run` of a small pipeline, cold and warm.

Both run from compiled Python files, as an installed package does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Bar, interleaved, median_ratio, report, wall_seconds
from startup import project

ROUNDS = 9
WARM_UP = 5


def main() -> int:
    flow = str(Path(sys.executable).with_name("flow"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        project(folder)
        env = {**os.environ, "EMATIX_FLOW_HOME": f"{name}/home"}
        env["PYTHONPYCACHEPREFIX"] = f"{name}/compiled"
        env.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(engine: str) -> float:
            command = [flow, "run", "load_orders", "--engine", engine]
            return wall_seconds(command, cwd=folder, env=env)

        run("local")
        subprocess.run([flow, "engine", "start"], cwd=folder, env=env, check=True)
        try:
            first = run("auto")
            for _ in range(WARM_UP):
                run("auto")
            taken = interleaved(
                {
                    "flow run, Spark in its own process": lambda: run("local"),
                    "flow run, warm engine": lambda: run("auto"),
                },
                rounds=ROUNDS,
            )
            # Otherwise both columns would be the same thing.
            subprocess.run([flow, "engine", "status"], cwd=folder, env=env, check=True)
        finally:
            subprocess.run([flow, "engine", "stop"], cwd=folder, env=env, check=True)
    cold = taken["flow run, Spark in its own process"]
    warm = taken["flow run, warm engine"]
    what = "`flow run`, 1,000-row CSV → DuckDB, warm engine / Spark in its own process"
    return report(
        "engine",
        bars=[Bar(what, median_ratio(warm, cold), 0.25)],
        taken={**taken, "flow run, first on a new engine": [first]},
        packages=("ematix-flow", "pyspark", "duckdb"),
    )


if __name__ == "__main__":
    sys.exit(main())
