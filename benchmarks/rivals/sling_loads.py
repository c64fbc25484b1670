"""Loads from MySQL with Sling's program; one line in, one time out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path


def main() -> None:
    program = Path(str(files("sling_linux_amd64"))) / "bin" / "sling-linux-amd64"
    program.chmod(0o755)
    shop = os.environ["BENCH_MYSQL"]
    environment = {
        **os.environ,
        "SLING_DISABLE_TELEMETRY": "true",
        "SHOP": shop,
        "STORE": f"{os.environ['BENCH_TARGET']}?sslmode=disable",
    }
    command = [str(program), "run", "--mode", "full-refresh", "--src-conn", "SHOP"]
    command += ["--src-stream", f"{shop.rsplit('/', 1)[1]}.orders"]
    command += ["--tgt-conn", "STORE", "--tgt-object", "public.from_mysql"]
    print("ready", flush=True)
    for line in sys.stdin:
        assert line.strip() == "mysql to postgres"
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
