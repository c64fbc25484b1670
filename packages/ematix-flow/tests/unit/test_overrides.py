"""``.sync(**overrides)``: options for one run, held to the same rules as the declaration."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Pipeline, Text, ematix, pk
from ematix_flow.errors import DeclarationError, UnknownName
from ematix_flow.run.overrides import with_overrides


@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]
    note: Text | None


def declared(**options: Any) -> Pipeline:
    @ematix.pipeline(target=Orders, target_connection="wh", **options)
    def load(conn: Any) -> str:
        return "SELECT 1"

    return load


def test_nothing_changed_is_the_same_object() -> None:
    spec = declared().spec
    assert with_overrides(spec, {}) is spec


def test_options_are_replaced_for_this_run_only() -> None:
    spec = declared(keys=["order_id"]).spec
    changed = with_overrides(spec, {"mode": "truncate", "allow_empty": True, "keys": ["note"]})
    assert changed.targets[0].mode == "truncate"
    assert (changed.options.allow_empty, changed.options.keys) == (True, ("note",))
    assert spec.targets[0].mode == "append"
    assert spec.options.keys == ("order_id",)
    assert changed.name == spec.name


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"key": ["order_id"]}, "pipeline 'load' has no load option 'key'; did you mean 'keys'?"),
        ({"schedule": "* * * * *"}, "pipeline 'load' has no load option 'schedule'; known are:"),
        ({"mode": "upsert"}, "mode='upsert' is not known"),
        ({"keys": "order_id"}, "pipeline 'load': keys= must be a list of column names"),
        ({"keys": ["id"]}, "keys= names 'id', which is not a column of shop.orders"),
        ({"allow_empty": True}, 'allow_empty=True does not go with mode="append"'),
        ({"compare_columns": ["note"]}, 'compare_columns= does not go with mode="append"'),
        ({"mode": "merge", "compare_columns": ["x"]}, "compare_columns= names 'x', which is not"),
        ({"incremental": True}, "incremental=True needs watermark_column="),
        (
            {"incremental": True, "watermark_column": "x"},
            "watermark_column= names 'x', which is not a column",
        ),
        ({"force_path": "fast"}, "force_path='fast' is not known"),
        ({"on_drift": "ignore"}, "on_drift='ignore' is not known"),
        ({"lookback": "1h"}, "lookback= must be a time above 0"),
    ],
)
def test_wrong_overrides(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises((DeclarationError, UnknownName)) as caught:
        with_overrides(declared().spec, overrides)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"order_by": "note"}, 'order_by= goes with duplicate_keys="last"'),
        ({"lookback": 60}, "lookback= goes with incremental=True"),
        ({"watermark_column": "order_id"}, "watermark_column= goes with incremental=True"),
        ({"null_watermark": "load"}, "null_watermark= goes with incremental=True"),
        ({"mode": "merge", "max_delete_fraction": 0.1}, "max_delete_fraction= goes with"),
        ({"mode": "merge", "soft_delete_column": "gone"}, "soft_delete_column= goes with"),
        ({"mode": "merge", "duplicate_keys": "first"}, "duplicate_keys='first' needs order_by="),
        ({"mode": "scd2", "handle_deletes": "hard"}, "which keeps history"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    overrides: dict[str, Any], says: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        with_overrides(declared().spec, overrides)
    assert says in str(caught.value)


def test_a_run_may_read_everything_once() -> None:
    options = {"incremental": True, "watermark_column": "order_id", "lookback": 5}
    spec = declared(mode="merge", null_watermark="load", **options).spec
    whole = with_overrides(spec, {"incremental": False}).targets[0].options
    assert (whole.incremental, whole.watermark_column, whole.lookback) == (False, None, None)
    with pytest.raises(DeclarationError, match="lookback= goes with incremental=True"):
        with_overrides(spec, {"incremental": False, "lookback": 5})


def test_the_engine_stays_whatever_is_overridden() -> None:
    held = declared(mode="merge", engine="sail")
    assert with_overrides(held.spec, {"mode": "append"}).placement.engine == "sail"
