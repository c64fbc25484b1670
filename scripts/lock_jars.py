"""Rewrites the hashes of the connector-jar lock from what the repositories serve.

Change or add a coordinate in ``engine/jars.lock`` (the hash may be left empty), run this, and
review the difference. ``--check`` only tells whether the lock is up to date.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from ematix_flow.engine.jars import LOCK_FILE, digest_of, fetch


def locked_again(lock: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """The same lock with every hash taken anew."""
    hashes: dict[str, str] = {}
    folder = Path(tempfile.mkdtemp(prefix="lock-jars-"))
    try:
        for jars in lock.values():
            for jar in jars:
                coordinate = jar["coordinate"]
                if coordinate not in hashes:
                    hashes[coordinate] = digest_of(fetch(coordinate, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        name: [
            {"coordinate": jar["coordinate"], "sha256": hashes[jar["coordinate"]]} for jar in jars
        ]
        for name, jars in sorted(lock.items())
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if stale")
    parser.add_argument("--lock", type=Path, default=LOCK_FILE, help="the lock file")
    options = parser.parse_args(arguments)
    before = options.lock.read_text(encoding="utf-8")
    after = json.dumps(locked_again(json.loads(before)), indent=2) + "\n"
    if after == before:
        print("the jar lock is up to date")
        return 0
    if options.check:
        print(f"{options.lock} is stale; run scripts/lock_jars.py", file=sys.stderr)
        return 1
    options.lock.write_text(after, encoding="utf-8")
    print(f"rewrote {options.lock}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
