"""The case of every letter there is."""

from __future__ import annotations

import sys
import unicodedata

from conformance_normalizers.engines import Case, Run, disagreements
from conformance_normalizers.strategies import NEW_PAIRS
from ematix_flow import normalize as n
from ematix_flow import types as t

LETTERS = tuple(
    letter
    for letter in map(chr, range(1, sys.maxunicode + 1))
    if letter not in NEW_PAIRS
    and unicodedata.category(letter) not in ("Cs", "Cn")
    and (letter.lower() != letter or letter.upper() != letter)
)
WORDS = (
    "ΟΔΥΣΣΕΥΣ",
    "ΑΣ Σ ΣΑ",
    "Α\u0301Σ\u0301",
    "İstanbul I\u0307 ı",
    "Straße ﬃ ŉ",
    "ǅ ǆ Ǆ",
    "ᾳ ᾼ",
)


def test_every_letter(engine_run: tuple[str, Run]) -> None:
    dialect, run = engine_run
    assert len(LETTERS) > 2700
    values = (*LETTERS, *WORDS)
    cases = [Case((one,), t.Text(), values) for one in (n.lower(), n.upper(), n.email_normalize())]
    found, taken = disagreements(cases, dialect, run)
    assert not found, "\n".join(found[:20])
    assert taken == {"spark": 3, "postgres": 3, "duckdb": 2, "sqlite": 0}[dialect]
