"""The registry: isolation, duplicates, redefinition, collecting, and the user's own line."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    Pipeline,
    SQLiteConnection,
    ematix,
    get_connection,
    pk,
    register_connection,
    registered_connections,
)
from ematix_flow.errors import (
    ConfigError,
    DeclarationError,
    DuplicateName,
    SourceLocation,
    UnknownConnection,
    UnknownName,
)
from ematix_flow.registry import (
    Registry,
    active_registry,
    caller_location,
    isolated_registry,
)


@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]


def declared(name: str) -> Pipeline:
    @ematix.pipeline(target=Orders, target_connection="wh", name=name)
    def load(conn: Any) -> str:
        return "SELECT 1 AS order_id"

    return load


def declared_elsewhere(name: str) -> Pipeline:
    @ematix.pipeline(target=Orders, target_connection="wh", name=name)
    def load(conn: Any) -> str:
        return "SELECT 2 AS order_id"

    return load


def test_a_fresh_registry_for_a_block(registry: Registry) -> None:
    declared("a")
    assert list(registry.pipelines) == ["a"]
    with isolated_registry() as inner:
        assert active_registry() is inner
        assert inner.pipelines == {}
        declared("b")
    assert active_registry() is registry
    assert list(registry.pipelines) == ["a"]


def test_a_block_ends_its_registry_even_when_it_fails(registry: Registry) -> None:
    with pytest.raises(RuntimeError), isolated_registry():
        raise RuntimeError
    assert active_registry() is registry


def test_threads_do_not_see_each_others_blocks() -> None:
    def names(name: str) -> list[str]:
        with isolated_registry() as held:
            declared(name)
            return list(held.pipelines)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(names, "abcdefgh")) == [[n] for n in "abcdefgh"]


def test_connections() -> None:
    held = SQLiteConnection(name="wh", path="x.db")
    assert register_connection(held) is held
    assert get_connection("wh") is held
    again = SQLiteConnection(name="wh", path="y.db")
    register_connection(again)
    assert registered_connections() == {"wh": again}
    registered_connections().clear()
    assert get_connection("wh") is again


def test_a_connection_that_is_not_registered() -> None:
    with pytest.raises(UnknownConnection) as caught:
        get_connection("wh")
    assert str(caught.value) == (
        "no connection 'wh' is registered in this process; register one with register_connection(…)"
    )
    register_connection(DuckDBConnection(name="warehouse", path="x"))
    with pytest.raises(UnknownConnection, match="did you mean 'warehouse'"):
        get_connection("warehose")


@pytest.mark.parametrize("value", ["wh", None, SQLiteConnection])
def test_only_connections_are_registered(value: Any) -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(DeclarationError, match="register_connection takes a connection") as caught:
        register_connection(value)
    assert caught.value.where == SourceLocation(__file__, line)


def test_the_same_function_again_replaces(registry: Registry) -> None:
    first, second = declared("load"), declared("load")
    assert registry.pipelines == {"load": second}
    assert first is not second


def test_another_function_of_the_same_name_is_refused(registry: Registry) -> None:
    first = declared("load")
    with pytest.raises(DuplicateName) as caught:
        declared_elsewhere("load")
    assert caught.value.what == f"pipeline 'load' is already declared at {first.spec.location}"
    assert caught.value.fix == "rename one of them, or give it name="
    assert caught.value.where is not None
    assert caught.value.where.file == __file__
    assert caught.value.where != first.spec.location
    assert registry.pipelines == {"load": first}


def test_a_notebook_cell_run_again_replaces(registry: Registry) -> None:
    cell = (
        "@ematix.pipeline(target=Orders, target_connection='wh')\n"
        "def load(conn):\n    return 'SELECT 1 AS order_id'\n"
    )
    for number in (1, 2):
        names = {"__name__": "__main__", "ematix": ematix, "Orders": Orders}
        exec(compile(cell, f"<cell {number}>", "exec"), names)  # noqa: S102 - as a notebook does
    assert registry.pipelines["load"].spec.location.file == "<cell 2>"


def test_two_files_of_one_module_name_are_two_places() -> None:
    text = (
        "@ematix.pipeline(target=Orders, target_connection='wh')\n"
        "def load(conn):\n    return 'SELECT 1 AS order_id'\n"
    )
    names = {"__name__": "pipelines", "ematix": ematix, "Orders": Orders}
    exec(compile(text, "a/pipelines.py", "exec"), dict(names))  # noqa: S102 - stands for an import
    with pytest.raises(DuplicateName, match=r"already declared at a/pipelines\.py:1"):
        exec(compile(text, "b/pipelines.py", "exec"), dict(names))  # noqa: S102 - the same


def test_unknown_pipelines(registry: Registry) -> None:
    with pytest.raises(UnknownName, match="there is no pipeline 'x'; declare one with @ematix"):
        registry.pipeline("x")
    declared("load_orders")
    with pytest.raises(UnknownName, match="did you mean 'load_orders'"):
        registry.pipeline("load_order")
    assert registry.pipeline("load_orders").name == "load_orders"


def test_collecting_keeps_every_error_and_the_good_ones() -> None:
    with isolated_registry(collecting=True) as registry:
        place = SourceLocation("p.py", 3)
        broken = registry.refuse("bad", ConfigError("it is wrong", fix="mend it"), place)
        declared("good")
        assert list(registry.pipelines) == ["good"]
        assert [str(e) for e in registry.errors] == ["p.py:3: it is wrong; mend it"]
        with pytest.raises(DeclarationError) as caught:
            registry.pipeline("bad")
        assert caught.value is broken.error
        with pytest.raises(UnknownName, match="did you mean 'bad'"):
            registry.pipeline("bat")


def test_nobody_collecting_raises_with_the_place(registry: Registry) -> None:
    with pytest.raises(DeclarationError, match=r"p\.py:3: it is wrong"):
        registry.refuse("bad", ConfigError("it is wrong"), SourceLocation("p.py", 3))
    assert registry.errors == []


def test_mending_a_pipeline_forgets_that_it_was_broken() -> None:
    with isolated_registry(collecting=True) as registry:
        registry.refuse("load", DeclarationError("it is wrong"), None)
        held = declared("load")
        assert registry.pipeline("load") is held


def test_the_callers_own_line() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    assert caller_location() == SourceLocation(__file__, line)


def test_declarations_know_their_line(registry: Registry) -> None:
    held = declared("a")
    first = inspect.getsourcelines(declared)[1]
    assert held.spec.location == SourceLocation(__file__, first + 1)
    source = inspect.getsourcelines(inspect.getmodule(declared))[0]  # type: ignore[arg-type]
    table = Orders.__table__
    assert table.location is not None
    assert source[table.location.line - 1].startswith(("@ematix.table", "class Orders"))
