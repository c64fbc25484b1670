"""``truncate`` replaces all rows at once, and does not let an empty source empty a table."""

from __future__ import annotations

import pytest

from conformance.conftest import Loader
from conformance.test_append import ROWS, SCHEMA, Events, plain
from ematix_flow.errors import EmptySource
from harness.base import Harness

pytestmark = pytest.mark.needs("replace")


def test_the_new_rows_replace_the_old(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA, mode="truncate").sync()
    result = loader(Events, [(8, "x"), (9, "y")], SCHEMA, mode="truncate").sync()
    assert plain(backend) == [(8, "x"), (9, "y")]
    assert (result.counts.inserted, result.counts.deleted) == (2, 3)
    assert backend.litter(backend.connection("target")) == []


def test_running_it_twice_changes_nothing(backend: Harness, loader: Loader) -> None:
    for _ in range(2):
        loader(Events, ROWS, SCHEMA, mode="truncate").sync()
    assert plain(backend) == sorted(ROWS, key=repr)


def test_an_empty_source_is_refused(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA, mode="truncate").sync()
    with pytest.raises(EmptySource, match="allow_empty=True"):
        loader(Events, [], SCHEMA, mode="truncate").sync()
    assert plain(backend) == sorted(ROWS, key=repr)
    assert backend.litter(backend.connection("target")) == []


def test_an_empty_source_may_be_allowed_by_name(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA, mode="truncate").sync()
    result = loader(Events, [], SCHEMA, mode="truncate", allow_empty=True).sync()
    assert plain(backend) == []
    assert result.counts.deleted == 3


def test_rows_that_were_appended_are_replaced_too(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    loader(Events, [(5, "only")], SCHEMA, mode="truncate").sync()
    assert plain(backend) == [(5, "only")]
