"""Random lives of many keys at once: keys are independent, so one load checks hundreds of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from oracle.state import Row

KEYS = 200
START = datetime(2024, 3, 30, 23, tzinfo=timezone.utc)
TEXTS = (None, "", "x", "X", "x ", "y", "NULL", "日付")
NUMBERS = (None, 0, 1, -1, 2**63 - 1)

# Examples are big and few; what varies within one is worth hundreds of small ones.
seeds = st.integers(0, 2**32 - 1)


def examples(count: int) -> Callable[..., Any]:
    """So many examples, always the same ones."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],  # a seed has no smaller seed
        suppress_health_check=list(HealthCheck),
    )


def dice(seed: int) -> random.Random:
    """Chance that falls the same way every time."""
    return random.Random(seed)  # noqa: S311 - nothing here is a secret


def snapshots(seed: int, *, batches: int = 3, copies: int = 1) -> list[list[Row]]:
    """Batches of states: most keys are in each, many as they were, some up to ``copies`` times."""
    chance = dice(seed)
    held = {k: _state(chance, k) for k in range(KEYS)}
    made = []
    for number in range(batches):
        batch: list[Row] = []
        for k in list(held):
            if chance.random() < 0.25:
                continue
            for _ in range(chance.randint(1, copies)):
                if chance.random() < 0.4:
                    held[k] = _state(chance, k)
                batch.append(held[k])
        chance.shuffle(batch)
        # Ranks are distinct within a batch and mean nothing across batches.
        ranks = chance.sample(range(len(batch) * 2), len(batch))
        made.append([{**row, "seq": rank} for row, rank in zip(batch, ranks, strict=True)])
        held[KEYS + number] = _state(chance, KEYS + number)
    return made


def _state(chance: random.Random, k: int) -> Row:
    return {
        "k": k,
        "a": chance.choice(TEXTS),
        "b": chance.choice(NUMBERS),
        "op": chance.choice((None, "U", "U", "D")),
    }


def event_batches(seed: int, *, batches: int = 3) -> list[list[Row]]:
    """Events of many keys, spread over batches at random, some more than once."""
    chance = dice(seed)
    made: list[list[Row]] = [[] for _ in range(batches)]
    for k in range(KEYS):
        for _ in range(chance.randint(1, 6)):
            event = _event(chance, k)
            for _ in range(chance.choice((1, 1, 1, 2))):
                chance.choice(made).append(event)
    for batch in made:
        chance.shuffle(batch)
    return made


def _event(chance: random.Random, k: int) -> Row:
    # Few instants and few values, so that ties, repeats and splits are the rule.
    return {
        "k": k,
        "at": START + timedelta(minutes=30 * chance.randint(0, 5)),
        "a": chance.choice((None, "x", "y", "x;~")),
        "b": chance.choice((None, 1)),
        "op": chance.choice((None, "U", "U", "U", "D")),
    }


def arrivals(seed: int, *, runs: int = 3) -> list[list[Row]]:
    """What a source that only grows has gained before each run: new, equal to the last, late."""
    chance = dice(seed)
    newest, number = 100, 0
    made = []
    for _ in range(runs):
        gained = []
        for _ in range(60):
            place = chance.choice((newest, newest, newest - 1, newest - 5, newest - 20, newest + 3))
            newest = max(newest, place)
            gained.append({"id": number, "at": place, "a": chance.choice(("x", "y"))})
            number += 1
        made.append(gained)
    return made
