"""Random patterns of the portable language mean the same in Python, Java, RE2 and PostgreSQL."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from conformance_normalizers.engines import Case, Run, disagreements
from conformance_normalizers.strategies import characters, examples
from ematix_flow import normalize as n
from ematix_flow import types as t
from ematix_flow.errors import DeclarationError

atoms = st.sampled_from(
    ["a", "b", "A", "1", "é", "😀", "ß",
     r"\.", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]",
     "[^ab]", "[a-c1]", r"[\d_-]", r"[^\s]", "[éß]", r"\t", r"\x41", r"\u00e9", r"[\x00-\x1f]",
     r"[^\n]", " ", "'", '"', "%", "/"]
)  # fmt: skip
edges = st.sampled_from(["", "", "", "", "^", "$", r"\b"])
counts = st.sampled_from(
    ["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "??"]
)
chains_of_atoms = st.lists(st.tuples(atoms, counts), min_size=1, max_size=4).map(
    lambda parts: "".join(atom + count for atom, count in parts)
)
bodies = st.recursive(
    chains_of_atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:"]), inner, counts).map(
            lambda g: f"{g[0]}{g[1]}){g[2]}"
        ),
    ),
    max_leaves=4,
)
replacements = st.sampled_from(["", "-", r"<\1>", r"[\&]", r"\\", "$1", r"\1\2", r"\10", "\n", "'"])
texts = st.text(
    st.one_of(st.sampled_from("aabbAB11.. _-é😀ß\t\n\r\x85\u2028K\u212a"), characters), max_size=10
)


@st.composite
def replacing(draw: st.DrawFn) -> Case | None:
    pattern = draw(edges) + draw(bodies) + draw(edges)
    flags = draw(st.sampled_from(["g", "g", "", "gi", "i"]))
    values = draw(st.lists(texts, min_size=5, max_size=8))
    try:
        chain = n.regex_replace(pattern, draw(replacements), flags)
    except DeclarationError:
        return None
    return Case((chain,), t.Text(), tuple(values))


PEOPLE_WRITE = (
    (r"\s+", " ", "g"), (r"[^0-9]", "", "g"), (r"^0+", "", "g"), (r"(\d{3})(\d{4})", r"\1-\2", "g"),
    (r"^\s+|\s+$", "", "g"), (r"\.$", "", "g"), (r"https?://", "", "gi"),
    (r"(\w+)@(\w+)", r"\2 at \1", ""),
    (r"a|ab", "<\\&>", "g"), (r"(\d+)(\.\d+)?", r"[\1|\2]", "g"), (r"(a)?ab", r"<\1>", "g"),
    (r"\bcat\b", "dog", "g"), ("[-.()]", "", "g"), ("(?:ab)+", "x", "g"),
    ("(a+?)(b*)", r"\2\1", ""),
)  # fmt: skip
PEOPLE_HAVE = (
    "", "   a  b ", "0012 030-123.45.", "5551234 and 5559876", "HTTP://x https://y",
    "me@host you@there",
    "abxd", "abab ab aab", "12.50 7 .5", "the cat concatenates cat's", "xxaxx",
    "a\nb\r\nc\u2028d.\n", "(1)-2.3",
    "aaabbb", None,
)  # fmt: skip


def test_patterns_that_people_write(engine_run: tuple[str, Run]) -> None:
    dialect, run = engine_run
    cases = [Case((n.regex_replace(*each),), t.Text(), PEOPLE_HAVE) for each in PEOPLE_WRITE]
    found, taken = disagreements(cases, dialect, run)
    assert not found, "\n".join(found[:20])
    assert taken == {"spark": 15, "postgres": 7, "duckdb": 15, "sqlite": 0}[dialect]


def test_random_patterns(engine_run: tuple[str, Run]) -> None:
    dialect, run = engine_run
    cases: list[Any] = [case for case in examples(replacing(), 300) if case is not None]
    found, _ = disagreements(cases, dialect, run)
    assert not found, "\n".join(found[:20])
