"""``python together.py '[["one", "--flag"], ["two"]]'``: programs that end together.

The first that ends, a signal, or the end of this process ends all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys

_DEATH_SIGNAL = 1


def main(commands: list[list[str]]) -> int:
    """Run them until told to stop; the last is told first, as it may need those before it."""
    library = ctypes.CDLL(None)

    def die_with_parent() -> None:
        library.prctl(_DEATH_SIGNAL, signal.SIGKILL)

    held: list[subprocess.Popen[bytes]] = []

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        for command in commands:
            # The new one never runs code of this process but the call above.
            held.append(subprocess.Popen(command, preexec_fn=die_with_parent))  # noqa: PLW1509
        os.wait()
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        for process in reversed(held):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
