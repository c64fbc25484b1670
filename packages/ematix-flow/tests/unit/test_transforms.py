"""Transforms as they are declared: what may stand in them, where they are found again."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, DuckDBConnection, Target, Text, ematix, pk
from ematix_flow.declaring_transforms import step_arguments
from ematix_flow.errors import DataError, DeclarationError, DuplicateName, UnknownName
from ematix_flow.pipeline import Pipeline, Transform
from ematix_flow.registry import active_registry, isolated_registry
from ematix_flow.run.reading import _with_source
from ematix_flow.run.row_transforms import check_row_transforms, inside_database
from ematix_flow.sql.normalizers import CannotMatch
from ematix_flow.transforms import deduplicate_by, filter_where, limit, sample_pct
from ematix_flow.types import Double, TimestampTZ
from ematix_flow.types import Text as TextType


@ematix.table(schema="shop")
class Orders:
    id: Annotated[BigInt, pk()]
    note: Text | None


def declared(**options: Any) -> Pipeline:
    given = {"target": Orders, "name": "load", **options}
    return ematix.pipeline(**given)(lambda conn: "SELECT 1 AS id, 'a' AS note")


class TestNamed:
    def test_it_is_found_by_its_name(self) -> None:
        @ematix.transform()
        def update_mart(conn: Any) -> str:
            """Bring the mart up to date."""
            return "SELECT 1"

        held = active_registry().transform("update_mart")
        assert held is update_mart
        assert isinstance(held, Transform)
        assert (held.name, held.connection, held.__doc__) == (
            "update_mart",
            None,
            "Bring the mart up to date.",
        )
        assert held.location.file == __file__
        assert repr(held) == "<Transform update_mart>"

    def test_its_connection(self) -> None:
        one = ematix.transform(name="a", connection="mart")(lambda: "SELECT 1")
        two = ematix.transform(name="b", target_connection=DuckDBConnection(name="d", path="x"))(
            lambda: "SELECT 1"
        )
        assert (one.connection, two.connection) == ("mart", "d")
        assert "d" in active_registry().connections

    def test_it_may_be_declared_again_in_its_place_only(self) -> None:
        for _ in range(2):
            ematix.transform(name="a")(_first)
        with pytest.raises(DuplicateName, match="transform 'a' is already declared at"):
            ematix.transform(name="a")(_second)

    @pytest.mark.parametrize(
        ("options", "function", "says"),
        [
            ({"conection": "x"}, lambda: None, "has no option 'conection'; did you mean 'conn"),
            ({"schedule": "* * * * *"}, lambda: None, "has no option 'schedule'"),
            ({"connection": "a", "target_connection": "b"}, lambda: None, "keep one of them"),
            ({"connection": 5}, lambda: None, "connection= takes a connection or its name"),
            ({}, "SELECT 1", "goes on a function, not 'SELECT 1'"),
            ({}, int, "goes on a function, not int"),
            ({}, lambda conn, day: None, "a parameter 'day' that nothing can be put into"),
        ],
    )
    def test_mistakes(self, options: dict[str, Any], function: Any, says: str) -> None:
        with pytest.raises(DeclarationError) as caught:
            ematix.transform(**{"name": "t", **options})(function)
        assert says in str(caught.value)
        assert "transform 't'" in str(caught.value)
        assert caught.value.where is not None
        assert caught.value.where.file == __file__

    def test_one_that_is_wrong_does_not_stop_a_project(self) -> None:
        with isolated_registry(collecting=True) as held:
            ematix.transform(name="bad")(lambda a, b: None)
            ematix.transform(name="good")(lambda: None)
        assert list(held.transforms) == ["good"]
        (error,) = held.errors
        assert "transform 'bad'" in str(error)

    def test_unknown_names(self) -> None:
        with pytest.raises(UnknownName, match=r"there is no transform 'x'; declare one"):
            active_registry().transform("x")
        ematix.transform(name="update_mart")(lambda: None)
        with pytest.raises(UnknownName, match="did you mean 'update_mart'"):
            active_registry().transform("update_marts")


def _first() -> str:
    return "SELECT 1"


def _second() -> str:
    return "SELECT 2"


@pytest.mark.parametrize(
    ("function", "roles"),
    [
        (lambda: None, ()),
        (lambda conn: None, (("conn", "target"),)),
        (lambda warehouse: None, (("warehouse", "target"),)),
        (
            lambda target, spark, run: None,
            (("target", "target"), ("spark", "spark"), ("run", "run")),
        ),
        (lambda run: None, (("run", "run"),)),
        (lambda day="now": None, ()),
        (lambda *args, **more: None, ()),
        (print, ()),
    ],
)
def test_what_a_step_is_given(function: Any, roles: tuple[tuple[str, str], ...]) -> None:
    given = dict(step_arguments(function))
    assert {k: v for k, v in given.items() if k not in ("sep", "end")} == dict(roles)


class TestDeclaring:
    def test_functions_and_steps_are_kept(self) -> None:
        def check(rows: Any) -> None: ...

        spec = declared(
            transforms_pre=[limit(5), check],
            transforms_post=["ANALYZE", print, ematix.transform_ref("x")],
            continue_on_failure_post=True,
        ).spec
        assert spec.transforms_pre == (limit(5), check)
        assert len(spec.transforms_post) == 3
        assert spec.continue_on_failure_post is True

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"transforms_pre": [lambda: None]}, "cannot be called with a DataFrame alone"),
            ({"transforms_pre": [lambda a, b: None]}, "cannot be called with a DataFrame alone"),
            ({"transforms_pre": [int]}, "transforms_pre= cannot hold int"),
            ({"transforms_post": [""]}, "transforms_post= cannot hold ''"),
            ({"transforms_post": [lambda conn, day: None]}, "a parameter 'day' that nothing"),
            (
                {"transforms_pre": [limit(5)], "incremental": True, "watermark_column": "id"},
                "limit() in transforms_pre= does not go with incremental=True",
            ),
            (
                {"transforms_pre": [limit(5)], "mode": "merge", "handle_deletes": "hard"},
                "limit() in transforms_pre= does not go with handle_deletes=",
            ),
            (
                {"transforms_pre": [sample_pct(5)], "mode": "merge", "handle_deletes": "soft"},
                "sample_pct() in transforms_pre= does not go with handle_deletes=: the rows it",
            ),
        ],
    )
    def test_mistakes(self, options: dict[str, Any], says: str) -> None:
        with pytest.raises(DeclarationError) as caught:
            declared(**options)
        assert says in str(caught.value)

    def test_a_target_keeps_its_own_options(self) -> None:
        targets = [
            Target(table=Orders, connection="a", mode="merge", column_map={"note": "text"}),
            Target(table=Orders, connection="b"),
        ]
        spec = declared(
            target=None,
            targets=targets,
            source_table="raw.orders",
            column_map={"id": "number"},
            continue_on_target_failure=True,
        ).spec
        assert [t.mode for t in spec.targets] == ["merge", "append"]
        assert [t.column_map for t in spec.targets] == [{"note": "text"}, {"id": "number"}]
        assert spec.target_labels == ("a:shop.orders", "b:shop.orders")
        assert spec.continue_on_target_failure
        with pytest.raises(DeclarationError, match="column_map= goes with source_table="):
            declared(target=None, targets=targets)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (filter_where("nota IS NULL"), "names 'nota', which is not a column"),
        (filter_where("note IS NUL ("), "is not a SQL condition"),
        (deduplicate_by("ids"), "names 'ids', which is not a column"),
        (deduplicate_by("id", order_by="notes desc"), "names 'notes', which"),
        (deduplicate_by("id", order_by="desc, ("), "is no order"),
    ],
)
def test_columns_are_checked_without_spark(entry: Any, says: str) -> None:
    with pytest.raises((DataError, DeclarationError)) as caught:
        check_row_transforms([entry], ["id", "note"])
    assert says in str(caught.value)


def test_what_only_spark_can_know_is_left_to_it() -> None:
    fine = [
        filter_where("NOTE = 'x' OR exists(array(1), x -> x > id)"),
        filter_where("id IN (SELECT max(other) FROM elsewhere)"),
        deduplicate_by("ID", order_by="length(note) desc"),
    ]
    check_row_transforms(fine, ["id", "note"])
    check_row_transforms([lambda rows: rows, filter_where("made_by_it = 1")], ["id"])


KNOWN = {"id": BigInt(), "note": TextType(), "at": TimestampTZ()}


def test_inside_a_database() -> None:
    steps = [filter_where("note IS NOT NULL"), deduplicate_by("id", order_by="at desc"), limit(3)]
    sql = inside_database("SELECT * FROM t", steps, KNOWN, "postgres")
    assert 'WHERE NOT "note" IS NULL' in sql
    assert 'PARTITION BY "id" ORDER BY "at" DESC NULLS LAST, "at" ASC NULLS FIRST' in sql
    assert '"note" COLLATE "C" ASC NULLS FIRST' in sql
    assert sql.endswith("LIMIT 3")


@pytest.mark.parametrize(
    ("entry", "types", "dialect"),
    [
        (sample_pct(5), KNOWN, "duckdb"),
        (lambda rows: None, KNOWN, "duckdb"),
        (filter_where("length(note) > 3"), KNOWN, "duckdb"),
        (filter_where("note = 'x'"), KNOWN, "mysql"),
        (filter_where("NOTE = 'x'"), KNOWN, "postgres"),
        (filter_where("note > 'x'"), KNOWN, "postgres"),
        (filter_where("note = 5"), KNOWN, "duckdb"),
        (filter_where("note IN ('a', 5)"), KNOWN, "duckdb"),
        (filter_where("weight = 0.1"), {**KNOWN, "weight": Double()}, "duckdb"),
        (deduplicate_by("id", order_by="at desc"), KNOWN, "sqlite"),
        (deduplicate_by("id", order_by="length(note)"), KNOWN, "duckdb"),
        (deduplicate_by("id", order_by="at NULLS LAST"), KNOWN, "duckdb"),
        (deduplicate_by("id"), {**KNOWN, "weight": Double()}, "duckdb"),
        (deduplicate_by("id"), {**KNOWN, "open": None}, "postgres"),
    ],
)
def test_what_a_database_may_do_differently_is_left_to_spark(
    entry: Any, types: dict[str, Any], dialect: str
) -> None:
    with pytest.raises(CannotMatch) as caught:
        inside_database("SELECT * FROM t", [entry], types, dialect)
    assert "Spark" in caught.value.reason


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM source;", "WITH source AS (SELECT * FROM `v`) SELECT 1 FROM source"),
        (
            "-- first\nWITH a AS (SELECT 1) SELECT * FROM a",
            "-- first\nWITH source AS (SELECT * FROM `v`),  a AS (SELECT 1) SELECT * FROM a",
        ),
        (
            "with recursive r AS (SELECT 1) SELECT * FROM r",
            "with recursive source AS (SELECT * FROM `v`),  r AS (SELECT 1) SELECT * FROM r",
        ),
    ],
)
def test_the_source_of_transform_sql(sql: str, expected: str) -> None:
    assert _with_source(sql, "v") == expected
