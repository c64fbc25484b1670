"""Documented pipelines that name peers, and how options are checked when they are declared."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import Pipeline, natural_key
from ematix_flow.errors import DeclarationError, EngineError
from ematix_flow.registry import active_registry

from .preambles import CUSTOMER_DIM, EVENTS, IMPORTS, QUICKSTART, WAREHOUSE

if TYPE_CHECKING:
    from .conftest import Database, Snippet

PREAMBLE = IMPORTS + WAREHOUSE + EVENTS + CUSTOMER_DIM

SNIPPETS: dict[str, tuple[str, str]] = {
    "distributed": (
        """
@ematix.pipeline(
    target=Events,
    mode="append",
    engine = "distributed",
    peers = ["http://host:9000", "dns://host:9000", "k8s://service.namespace:9000"],
)
def ingest(conn):
    return "SELECT event_id, name, received_at FROM raw.events"
""",
        "peer dns://host:9000",
    ),
}


@pytest.fixture(autouse=True)
def variables(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAREHOUSE_DSN", "EMATIX_FLOW_DSN"):
        monkeypatch.setenv(name, database.url)


def the_pipeline() -> Pipeline:
    (held,) = active_registry().pipelines.values()
    return held


@pytest.mark.parametrize("name", SNIPPETS)
def test_what_needs_no_spark_needs_no_peer(
    name: str, my_pipelines: Snippet, database: Database
) -> None:
    my_pipelines(PREAMBLE, SNIPPETS[name][0])
    held = the_pipeline()
    assert held.validate().ok
    result = held.sync()
    assert result.path == "same_db"
    assert database.query("SELECT count(*) FROM raw.events") == [(result.counts.inserted,)]
    with pytest.raises(EngineError, match="the name host is not known") as caught:
        held.sync(force_path="spark")
    assert SNIPPETS[name][1] in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('compare_columns=["email", "name"]', 'compare_columns=["mail"]', "names 'mail', which is"),
        ('mode="scd2"', 'mode="scd"', "mode='scd' is not known; did you mean"),
        ('schedule="0 * * * *"', 'schedule="0 * * *"', "is not a cron expression"),
        ("target=CustomerDim", "target=sync", "is not a declared table"),
        ("compare_columns", "compare_column", "did you mean 'compare_columns'"),
    ],
)
def test_its_options_are_checked_now(
    before: str, after: str, says: str, my_pipelines: Snippet
) -> None:
    snippet = QUICKSTART
    assert before in snippet
    with pytest.raises(DeclarationError) as caught:
        my_pipelines(PREAMBLE, "def sync(): pass", snippet.replace(before, after))
    assert says in str(caught.value)
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("my_pipelines.py")


class TestKeys:
    """Which columns a merge takes for its key, and when it says so."""

    def declared(self, my_pipelines: Snippet, table: str, option: str = "") -> list[str]:
        snippet = f"""
@ematix.table(schema="analytics")
class Held:
{table}

@ematix.pipeline(target=Held, mode="merge"{option})
def sync(conn):
    return "SELECT 1"
"""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            my_pipelines("from ematix_flow import natural_key", IMPORTS, snippet)
        return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]

    DUNDER = """
    __merge_keys__ = ("col_a", "col_b")
    id: Annotated[BigInt, pk()]
    col_a: Text
    col_b: Text
"""
    NATURAL = """
    id: Annotated[BigInt, pk()]
    customer_id: Annotated[BigInt, natural_key()]
"""

    def test_another_key_than_the_primary_one_is_announced(self, my_pipelines: Snippet) -> None:
        (told,) = self.declared(my_pipelines, self.DUNDER)
        assert "merged on col_a, col_b (__merge_keys__)" in told
        (told,) = self.declared(my_pipelines, self.NATURAL)
        assert "merged on customer_id (natural_key())" in told

    def test_explicit_keys_silence_it(self, my_pipelines: Snippet) -> None:
        option = ', keys=("col_a", "col_b")'
        assert self.declared(my_pipelines, self.DUNDER, option) == []
        assert the_pipeline().spec.options.keys == ("col_a", "col_b")

    def test_help(self) -> None:
        documented: Any = natural_key.__doc__
        assert "key" in documented
