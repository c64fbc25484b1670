"""``.sync(**overrides)``: options for one run, held to the same rules as the declaration."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Pipeline, Text, ematix, pk
from ematix_flow.errors import DeclarationError, NotAvailableYet, UnknownName
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
    assert changed.not_yet == ()
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
        ({"watermark_column": "x"}, "watermark_column= names 'x', which is not a column"),
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
    ("overrides", "feature"),
    [
        ({"mode": "merge"}, "mode='merge'"),
        ({"mode": "scd2", "ttl_seconds": 5}, "ttl_seconds="),
        ({"incremental": True, "watermark_column": "order_id"}, "incremental=True"),
        ({"mode": "merge", "handle_deletes": "hard"}, "handle_deletes="),
        ({"mode": "merge", "duplicate_keys": "first"}, "duplicate_keys='first'"),
        ({"order_by": "note"}, "order_by="),
        ({"on_drift": "warn"}, "on_drift='warn'"),
        ({"lookback": 60}, "lookback="),
    ],
)
def test_what_comes_later_is_not_dropped_in_silence(
    overrides: dict[str, Any], feature: str
) -> None:
    held = declared()
    assert feature in with_overrides(held.spec, overrides).not_yet
    with pytest.raises(NotAvailableYet) as caught:
        held.sync(**overrides)
    assert feature in str(caught.value)
    assert caught.value.where == held.spec.location


def test_an_override_can_take_a_later_feature_away() -> None:
    spec = declared(mode="merge").spec
    assert spec.not_yet == ("mode='merge'",)
    assert with_overrides(spec, {"mode": "append"}).not_yet == ()


def test_a_later_feature_that_is_no_load_option_stays() -> None:
    spec = declared(mode="merge", transform_sql="SELECT * FROM source").spec
    changed = with_overrides(spec, {"mode": "append"})
    assert changed.not_yet == ("transform_sql= in a batch pipeline",)
