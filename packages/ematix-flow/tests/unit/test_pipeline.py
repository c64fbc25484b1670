"""The pipeline object: how its function is called, what it may return, what a run gives back."""

from __future__ import annotations

import asyncio
import functools
import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Pipeline, SQLiteConnection, ematix, pk, register_connection
from ematix_flow.errors import ConfigError, DataError, DeclarationError, RunError
from ematix_flow.registry import active_registry
from ematix_flow.run.function import RunInfo, call_function
from ematix_flow.run.preview import Preview
from ematix_flow.run.result import RunResult


@ematix.table()
class Numbers:
    number: Annotated[BigInt, pk()]


def declared(function: Any, **options: Any) -> Pipeline:
    active_registry().pipelines.clear()
    options = {"target": Numbers, "target_connection": "wh", "name": "load", **options}
    return ematix.pipeline(**options)(function)


GIVERS = {role: (lambda role=role: f"the {role}") for role in ("source", "target", "spark", "run")}


def called(function: Any, **options: Any) -> Any:
    return call_function(declared(function, **options).spec, GIVERS)  # type: ignore[arg-type]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A SQLite file with numbers in it, as connection wh."""
    path = tmp_path / "wh.db"
    live_connection = SQLiteConnection(name="wh", path=str(path))
    register_connection(live_connection)
    from ematix_flow import connect

    with connect("wh") as live:
        live.execute("CREATE TABLE raw (number BIGINT)")
        live.execute("INSERT INTO raw VALUES (1), (2), (3)")
    return path


class TestCalling:
    def test_arguments_are_injected_by_name(self) -> None:
        assert called(lambda: "SELECT 1") == "SELECT 1"
        assert called(lambda conn: conn) == "the source"
        assert called(lambda anything: anything) == "the source"
        assert called(lambda src, tgt: f"{src}, {tgt}") == "the source, the target"
        assert called(lambda run, spark, conn: f"{conn}, {spark}, {run}") == (
            "the source, the spark, the run"
        )

    def test_only_what_is_asked_for_is_made(self) -> None:
        def fail() -> Any:
            raise AssertionError("nobody asked")

        givers = {"source": lambda: "s", "target": fail, "spark": fail, "run": fail}
        spec = declared(lambda conn: conn).spec
        assert call_function(spec, givers) == "s"

    def test_unusual_signatures(self) -> None:
        def only_by_place(conn: str, /) -> str:
            return conn

        def only_by_name(*, run: str, conn: str) -> str:
            return f"{conn} {run}"

        def with_default(conn: str, day: str = "today") -> str:
            return f"{conn} {day}"

        assert called(only_by_place) == "the source"
        assert called(only_by_name) == "the source the run"
        assert called(with_default) == "the source today"
        bound = functools.partial(lambda conn, table: f"{conn} {table}", table="t")
        assert called(bound) == "the source t"

    def test_coroutines(self) -> None:
        async def load(conn: str) -> str:
            await asyncio.sleep(0)
            return conn

        assert called(load) == "the source"

    def test_coroutines_inside_a_running_loop(self) -> None:
        async def load(conn: str) -> str:
            await asyncio.sleep(0)
            return conn

        async def notebook() -> Any:
            return called(load)

        assert asyncio.run(notebook()) == "the source"

    def test_a_function_that_raises(self) -> None:
        def load(conn: Any) -> str:
            return {}["no\nkey"]  # type: ignore[no-any-return]

        with pytest.raises(RunError) as caught:
            called(load)
        line = inspect.getsourcelines(load)[1] + 1
        assert str(caught.value) == (
            f"{__file__}:{line}: the function of pipeline 'load' raised KeyError: 'no\\nkey'; "
            "correct the function"
        )
        assert isinstance(caught.value.__cause__, KeyError)

    def test_our_own_errors_pass_through(self) -> None:
        def load(conn: Any) -> str:
            raise DataError("it is wrong")

        with pytest.raises(DataError, match="it is wrong"):
            called(load)

    @pytest.mark.parametrize(
        ("returned", "options", "says"),
        [
            (None, {}, "returned nothing and there is no source_table="),
            ("", {}, "returned an empty text; return a SELECT"),
            ("  \n", {}, "returned an empty text"),
            ([1], {}, "returned a list; return SQL, a Spark DataFrame, or nothing"),
            (..., {}, "returned a ellipsis"),
            ("SELECT 1", {"source_table": "raw"}, "has source_table= and its function returned so"),
        ],
    )
    def test_what_cannot_be_loaded(self, returned: Any, options: dict[str, Any], says: str) -> None:
        with pytest.raises(DataError) as caught:
            called(lambda conn: returned, **options)
        assert says in str(caught.value)
        assert caught.value.where is not None
        assert caught.value.fix

    def test_nothing_goes_with_a_source_table(self) -> None:
        assert called(lambda: None, source_table="raw") is None


@pytest.mark.usefixtures("database")
class TestRunning:
    def test_sync_and_calling_do_the_same(self) -> None:
        held = declared(lambda conn: "SELECT number FROM raw", mode="truncate")
        for result in (held.sync(), held()):
            assert isinstance(result, RunResult)
            assert (result.pipeline, result.target, result.status) == (
                "load", "numbers", "succeeded",
            )  # fmt: skip
            assert (result.rows_inserted, result.counts.read, result.path) == (3, 3, "same_db")
            assert result.to_dict()["rows_inserted"] == 3
            assert result.seconds >= 0

    def test_the_function_may_use_its_live_source(self) -> None:
        def load(conn: Any, run: RunInfo) -> str:
            (row,) = conn.query("SELECT max(number) AS top FROM raw")
            return f"SELECT number FROM raw WHERE number = {row['top']} - {run.parameters['back']}"

        held = declared(load)
        assert held.sync(parameters={"back": "1"}).rows_inserted == 1
        from ematix_flow import connect

        with connect("wh") as live:
            assert live.query("SELECT number FROM numbers") == [{"number": 2}]

    def test_a_static_source(self) -> None:
        held = declared(lambda: None, source_table="raw", column_map={"number": "number"})
        assert held.sync().rows_inserted == 3

    def test_dry_run_writes_nothing(self) -> None:
        held = declared(lambda conn: "SELECT number FROM raw")
        result = held.dry_run()
        assert (result.dry_run, result.status, result.rows_inserted) == (True, "counted", 3)
        from ematix_flow import connect

        with connect("wh") as live:
            found = live.query("SELECT name FROM sqlite_master WHERE name = 'numbers'")
        assert found == []

    def test_preview_reads_and_writes_nothing(self, database: Path) -> None:
        before = database.read_bytes()
        held = declared(lambda conn: "SELECT number FROM raw", schedule="0 2 * * *")
        preview = held.preview()
        assert isinstance(preview, Preview)
        assert (preview.pipeline, preview.mode, preview.path) == ("load", "append", "same_db")
        assert preview.source_sql == "SELECT number FROM raw"
        assert preview.ddl
        assert held.preview(mode="truncate").mode == "truncate"
        assert database.read_bytes() == before

    def test_validate(self) -> None:
        assert declared(lambda conn: "SELECT number FROM raw").validate().ok
        wrong = declared(lambda conn: "SELECT nothing FROM raw").validate()
        assert not wrong.ok
        assert "nothing" in wrong.errors[0]

    def test_machines_that_nobody_has_named(self) -> None:
        held = declared(lambda conn: "SELECT number FROM raw", engine="distributed")
        for attempt in (held.sync, held, held.preview, held.dry_run):
            with pytest.raises(ConfigError, match="neither peers nor a master are named"):
                attempt()
        assert not held.validate().ok

    def test_unknown_overrides(self) -> None:
        with pytest.raises(DeclarationError, match="has no load option 'moode'"):
            declared(lambda conn: "SELECT number FROM raw").sync(moode="append")


def test_it_shows_itself() -> None:
    assert repr(declared(lambda conn: "SELECT 1")) == "<Pipeline load → numbers>"
