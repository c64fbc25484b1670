"""``python -m services start|stop|status [name …]``: the servers by hand."""

from __future__ import annotations

import argparse
import sys
import time

from services.harness import KEEP, Harness, available, start_all


def main() -> int:
    """Do what was asked for every named server; 1 if any could not be started."""
    services = available()
    parser = argparse.ArgumentParser(prog="python -m services", description=__doc__)
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(services)}")
    arguments = parser.parse_args()
    names = arguments.names or list(services)
    unknown = [name for name in names if name not in services]
    if unknown:
        parser.error(f"no such service: {', '.join(unknown)}; there is {', '.join(services)}")
    if arguments.action == "start":
        return start(names)
    for name in names:
        harness = Harness(services[name])
        if arguments.action == "stop":
            print(f"{name}: {'stopped' if harness.stop() else 'was not running'}")
        else:
            endpoint = harness.status()
            print(f"{name}: {services[name].client(endpoint).url if endpoint else 'not running'}")
    return 0


def start(names: list[str]) -> int:
    """Start servers in parallel and leave them running."""
    began = time.monotonic()
    failed = 0
    for name, outcome in start_all(names, lease=KEEP).items():
        if isinstance(outcome, Exception):
            failed = 1
            print(f"{name}: failed: {outcome}", file=sys.stderr)
        else:
            print(f"{name}: {available()[name].client(outcome).url}")
    print(f"after {time.monotonic() - began:.1f} s", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
