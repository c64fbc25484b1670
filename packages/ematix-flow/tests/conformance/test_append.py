"""``append`` inserts every row, in one commit, with its run."""

from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.conftest import Loader
from ematix_flow import BigInt, EmatixError, Text, ematix, pk
from ematix_flow.backends.loading import load_backend
from harness.base import Harness


@ematix.table(schema="app")
class Events:
    event_id: BigInt
    name: Text | None


@ematix.table(schema="app")
class Keyed:
    event_id: Annotated[BigInt, pk()]
    name: Text | None


SCHEMA = "event_id BIGINT, name STRING"
ROWS = [(1, "a"), (2, None), (3, "")]


def plain(backend: Harness, table: type = Events) -> list[tuple[object, ...]]:
    found = backend.rows(backend.connection("target"), table.__table__)
    return sorted(((r["event_id"], r["name"]) for r in found), key=repr)


def test_a_run_inserts_every_row_and_says_so(backend: Harness, loader: Loader) -> None:
    result = loader(Events, ROWS, SCHEMA).sync()
    assert plain(backend) == sorted(ROWS, key=repr)
    assert (result.counts.read, result.counts.inserted, result.counts.deleted) == (3, 3, 0)
    assert result.status == "succeeded"
    assert backend.litter(backend.connection("target")) == []


def test_a_second_run_adds_to_the_first(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    loader(Events, [(1, "again")], SCHEMA).sync()
    assert plain(backend) == sorted([*ROWS, (1, "again")], key=repr)


def test_an_empty_source_creates_the_table_and_adds_nothing(
    backend: Harness, loader: Loader
) -> None:
    result = loader(Events, [], SCHEMA).sync()
    assert result.counts.inserted == 0
    assert plain(backend) == []


def test_every_row_carries_its_run(backend: Harness, loader: Loader) -> None:
    first = loader(Events, ROWS, SCHEMA).sync()
    second = loader(Events, [(9, "z")], SCHEMA).sync()
    found = backend.rows(backend.connection("target"), Events.__table__)
    by_run = {str(r["_run_id"]): 0 for r in found}
    for row in found:
        by_run[str(row["_run_id"])] += 1
        assert row["_loaded_at"] is not None
    assert by_run == {first.run_id: 3, second.run_id: 1}


def test_the_target_itself_knows_which_runs_committed(backend: Harness, loader: Loader) -> None:
    result = loader(Events, ROWS, SCHEMA).sync()
    product = load_backend(backend.connection("target"))
    assert product.committed(result.run_id, Events.__table__.name) == result.counts
    assert product.committed("01900000-0000-7000-8000-000000000000", Events.__table__.name) is None


def test_a_dry_run_counts_and_leaves_nothing(backend: Harness, loader: Loader) -> None:
    result = loader(Events, ROWS, SCHEMA).dry_run()
    connection = backend.connection("target")
    assert (result.counts.inserted, result.dry_run) == (3, True)
    assert not backend.exists(connection, Events.__table__.name)
    assert backend.litter(connection) == []
    loader(Events, ROWS, SCHEMA).sync()
    assert loader(Events, ROWS, SCHEMA).dry_run().counts.inserted == 3
    assert plain(backend) == sorted(ROWS, key=repr)


def test_asking_changes_nothing_even_if_the_function_tries(
    backend: Harness, loader: Loader
) -> None:
    loader(Events, ROWS, SCHEMA).sync()

    @ematix.pipeline(target=Events, source_connection="rows", target_connection="target")
    def meddling(conn: object) -> str:
        conn.execute("CREATE TABLE meddled (a INT)")  # type: ignore[attr-defined]
        return "SELECT 1 AS event_id, 'a' AS name"

    validation = meddling.validate()
    assert not validation.ok
    assert "execute()" in validation.errors[0]
    for ask in (meddling.preview, meddling.dry_run):
        with pytest.raises(EmatixError, match=r"execute\(\)"):
            ask()
    assert plain(backend) == sorted(ROWS, key=repr)


def test_a_failing_row_leaves_the_target_as_it_was(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    broken = loader(Events, [(7, "new"), (None, "no key")], SCHEMA)
    with pytest.raises(EmatixError, match="event_id") as caught:
        broken.sync()
    assert "NULL" in str(caught.value)
    assert plain(backend) == sorted(ROWS, key=repr)
    assert backend.litter(backend.connection("target")) == []


def test_a_primary_key_is_enforced_where_the_backend_says_so(
    backend: Harness, loader: Loader
) -> None:
    loader(Keyed, ROWS, SCHEMA).sync()
    again = loader(Keyed, ROWS, SCHEMA)
    if load_backend(backend.connection("target")).capabilities.constraints:
        with pytest.raises(EmatixError):
            again.sync()
        assert plain(backend, Keyed) == sorted(ROWS, key=repr)
    else:
        again.sync()
        assert plain(backend, Keyed) == sorted([*ROWS, *ROWS], key=repr)


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.integers(-(2**63), 2**63 - 1),
                st.none()
                | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8),
            ),
            max_size=6,
        ),
        min_size=1,
        max_size=2,
    )
)
def test_any_batches_in_any_order_add_up(
    backend: Harness, loader: Loader, batches: list[list[tuple[int, str | None]]]
) -> None:
    product = load_backend(backend.connection("target"))
    held = backend.exists(backend.connection("target"), Events.__table__.name)
    before = plain(backend) if held else []
    for batch in batches:
        loader(Events, batch, SCHEMA).sync()
    expected = [*before, *(row for batch in batches for row in batch)]
    assert plain(backend) == sorted(expected, key=repr)
    assert product.kind == backend.kind
