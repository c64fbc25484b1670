"""The checks behind the decorators, where they are used by themselves."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ematix_flow.declaring import (
    check_function,
    function_shape,
)
from ematix_flow.declaring_options import MODES, check_mode, load_options
from ematix_flow.declaring_running import dependencies, retry_policy
from ematix_flow.errors import BadValue, Transient, UnknownName
from ematix_flow.model import LoadOptions, RetryPolicy


@pytest.mark.parametrize(
    ("function", "roles"),
    [
        (lambda: None, {}),
        (lambda conn: None, {"conn": "source"}),
        (lambda c: None, {"c": "source"}),
        (lambda warehouse: None, {"warehouse": "source"}),
        (lambda spark: None, {"spark": "spark"}),
        (lambda run: None, {"run": "run"}),
        (lambda target: None, {"target": "target"}),
        (lambda src, tgt: None, {"src": "source", "tgt": "target"}),
        (lambda source, target: None, {"source": "source", "target": "target"}),
        (lambda run, conn, spark: None, {"run": "run", "conn": "source", "spark": "spark"}),
        (lambda conn, *, run: None, {"conn": "source", "run": "run"}),
        (lambda conn, day="today": None, {"conn": "source"}),
        (functools.partial(lambda conn, table: None, table="t"), {"conn": "source"}),
    ],
)
def test_arguments_are_told_by_their_names(function: Any, roles: dict[str, str]) -> None:
    assert dict(function_shape(function).parameters) == roles
    assert function_shape(function).wants == set(roles.values())
    assert check_function(function, None) == function_shape(function)


async def load_later(conn: Any) -> str:
    return "SELECT 1"


def test_coroutines_have_the_same_shape() -> None:
    assert dict(function_shape(load_later).parameters) == {"conn": "source"}


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    assert check_mode(mode) == mode
    assert load_options({"mode": mode}) == LoadOptions()


def test_an_unknown_mode() -> None:
    with pytest.raises(UnknownName, match="mode='scd3' is not known; did you mean 'scd"):
        check_mode("scd3")


def test_options_become_tuples_and_seconds() -> None:
    from datetime import timedelta

    options = load_options(
        {
            "mode": "scd2",
            "keys": ["a"],
            "compare_columns": ["b", "c"],
            "ttl": timedelta(days=1),
            "incremental_column": "d",
        }
    )
    assert options.keys == ("a",)
    assert options.compare_columns == ("b", "c")
    assert options.ttl_seconds == 86_400
    assert options.watermark_column == "d"


def test_no_retry_is_none_and_an_empty_one_the_default() -> None:
    assert retry_policy(None) is None
    assert retry_policy({}) == RetryPolicy()


@pytest.mark.parametrize(
    ("given", "pauses"),
    [
        ({"backoff_seconds": 30, "backoff_factor": 2.0}, [30, 60, 120, 240]),
        ({"backoff": "fixed", "base_secs": 5}, [5, 5, 5, 5]),
        ({"backoff": "linear", "base_secs": 5}, [5, 10, 15, 20]),
        ({"backoff": "exponential", "base_secs": 5, "max_backoff_secs": 18}, [5, 10, 18, 18]),
        ({"backoff": "exponential", "base_secs": 1, "backoff_factor": 3}, [1, 3, 9, 27]),
    ],
)
def test_pauses_between_attempts(given: dict[str, Any], pauses: list[float]) -> None:
    policy = retry_policy({"max_attempts": 5, **given})
    assert policy is not None
    assert [policy.pause_after(n) for n in range(1, 5)] == pauses


def test_dependencies_with_and_without_conditions() -> None:
    meant = {"a": "success", "b": "completed"}
    assert dependencies(["a", ("b", "completed")]) == meant
    assert dependencies(meant) == meant
    assert dependencies(None) == dependencies([]) == {}


def test_which_errors_are_tried_again() -> None:
    lost = Transient("gone", connection="w")
    for retry_on, covered in {
        "transient": [True, False],
        "any": [True, True],
        ("DataError",): [False, True],
        ("transient", "BadValue"): [True, True],
    }.items():
        policy = retry_policy({"retry_on": retry_on})
        assert policy is not None
        assert [policy.covers(lost), policy.covers(BadValue("x"))] == covered
