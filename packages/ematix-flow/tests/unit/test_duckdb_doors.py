"""Threads of one process that open and close one DuckDB file at the same moment."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from ematix_flow.backends.duckdb import DuckDB
from ematix_flow.connections import DuckDBConnection

PATIENCE = 8.0


def test_a_file_that_one_thread_closes_can_be_opened_by_two_others(tmp_path: Path) -> None:
    """DuckDB would let one of them in and keep the other out for as long as the first stays."""
    backend = DuckDB(DuckDBConnection(name="shared", path=str(tmp_path / "shared.duckdb")))
    chance = random.Random(20)  # noqa: S311 - spreads threads, hides nothing
    for _ in range(40):
        leaving = backend.connect()
        leaving.execute("CREATE OR REPLACE TABLE filled AS FROM range(20_000)")
        start, both_in = threading.Barrier(3), threading.Barrier(2)
        waits = [chance.random() * 0.004 for _ in range(2)]
        met: list[float] = []

        def enter(
            pause: float,
            start: threading.Barrier = start,
            both_in: threading.Barrier = both_in,
            met: list[float] = met,
        ) -> None:
            start.wait(PATIENCE)
            threading.Event().wait(pause)
            raw = backend.connect()
            try:
                both_in.wait(PATIENCE)
                met.append(pause)
            finally:
                backend.disconnect(raw)

        threads = [threading.Thread(target=enter, args=(pause,)) for pause in waits]
        for thread in threads:
            thread.start()
        start.wait(PATIENCE)
        threading.Event().wait(chance.random() * 0.003)
        backend.disconnect(leaving)
        for thread in threads:
            thread.join()
        assert sorted(met) == sorted(waits)
