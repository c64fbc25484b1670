"""What the other engines are worth: `flow run` of a small pipeline, cold, warm and on Sail.

All run from compiled Python files, as an installed package does.
"""

from __future__ import annotations

import json
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
                run("sail")
            taken = interleaved(
                {
                    "flow run, Spark in its own process": lambda: run("local"),
                    "flow run, warm engine": lambda: run("auto"),
                    "flow run, Sail": lambda: run("sail"),
                },
                rounds=ROUNDS,
            )
            # Otherwise the columns would be the same thing.
            subprocess.run([flow, "engine", "status"], cwd=folder, env=env, check=True)
            told = [flow, "preview", "load_orders", "--engine", "sail", "--format", "json"]
            shown = subprocess.run(told, cwd=folder, env=env, check=True, capture_output=True)
            if json.loads(shown.stdout)["engine"] != "sail":
                raise SystemExit("the pipeline did not run on Sail")
        finally:
            subprocess.run([flow, "engine", "stop"], cwd=folder, env=env, check=True)
    cold = taken["flow run, Spark in its own process"]
    job = "`flow run`, 1,000-row CSV → DuckDB"
    bars = {("warm engine", "flow run, warm engine"): 0.25, ("Sail", "flow run, Sail"): 0.2}
    return report(
        "engine",
        bars=[
            Bar(
                f"{job}, {name} / Spark in its own process", median_ratio(taken[run_of], cold), goal
            )
            for (name, run_of), goal in bars.items()
        ],
        taken={**taken, "flow run, first on a new engine": [first]},
        packages=("ematix-flow", "pyspark", "duckdb", "pysail"),
    )


if __name__ == "__main__":
    sys.exit(main())
