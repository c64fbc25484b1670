"""Tables: every way to declare one, and every way to get it wrong."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, ClassVar, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import (
    Array,
    BigInt,
    Column,
    Date,
    Integer,
    ManagedTable,
    Numeric,
    String,
    Text,
    TimestampTZ,
    ematix,
    natural_key,
    nullable,
    pk,
)
from ematix_flow import types as t
from ematix_flow.errors import DeclarationError, DuplicateName, EmatixError, UnknownName
from ematix_flow.model import Table
from ematix_flow.normalize import empty_to_null, lower, trim
from ematix_flow.registry import isolated_registry
from ematix_flow.table import snake_case


class Events(ManagedTable):
    """What happened."""

    __schema__ = "analytics"
    __tablename__ = "events"

    event_id: Annotated[BigInt, pk()]
    name: Text | None
    received_at: TimestampTZ


def test_annotations_become_columns() -> None:
    table = Events.__table__
    assert str(table.name) == "analytics.events"
    assert [(c.name, str(c.type), c.nullable, c.primary_key) for c in table.columns] == [
        ("event_id", "BigInt", False, True),
        ("name", "Text", True, False),
        ("received_at", "TimestampTZ", False, False),
    ]
    assert table.doc == "What happened."
    assert table.primary_key == ("event_id",)
    assert table.column_names == ("event_id", "name", "received_at")
    assert table.columns[0].to_spec() == {
        "name": "event_id", "type": {"kind": "big_int"}, "nullable": False, "primary_key": True,
    }  # fmt: skip


def test_the_decorator_says_the_same() -> None:
    @ematix.table(schema="analytics", name="events")
    class AnyName:
        """What happened."""

        event_id: Annotated[BigInt, pk()]
        name: Text | None
        received_at: TimestampTZ

    assert issubclass(AnyName, ManagedTable)
    assert AnyName.__name__ == "AnyName"
    assert AnyName.__module__ == __name__
    held = dataclasses.replace(AnyName.__table__, location=Events.__table__.location)
    assert held == Events.__table__


def test_column_objects_say_the_same() -> None:
    class Held(ManagedTable):
        """What happened."""

        __schema__ = "analytics"
        __tablename__ = "events"
        event_id = Column(t.BigInt(), primary_key=True)
        name = Column(t.Text)
        received_at = Column(t.TimestampTZ(), nullable=False)

    held = dataclasses.replace(Held.__table__, location=Events.__table__.location)
    assert held == Events.__table__


def test_column_objects_may_be_named_and_normalized() -> None:
    class Held(ManagedTable):
        mail = Column(t.String[64] | None, name="e-mail", nullable=False, normalizers=(trim(),))
        note: Text

    assert Held.__table__.column_names == ("note", "e-mail")
    column = Held.__table__.columns[1]
    assert (column.type, column.nullable, column.normalizers) == (t.String[64], True, (trim(),))


def test_markers_in_any_order() -> None:
    class Held(ManagedTable):
        a: Annotated[String[256] | None, lower(), trim(), empty_to_null()]
        b: Annotated[Text, nullable(), trim()]
        c: Annotated[Text, trim(), natural_key()]
        d: Annotated[Numeric[12, 2], pk()]
        e: Annotated[Array[Text], nullable()]
        f: Optional[Integer]  # noqa: UP045 - an old spelling that is still typed
        g: Annotated[Annotated[Text, lower()], trim()]

    held = {c.name: c for c in Held.__table__.columns}
    assert held["a"].normalizers == (lower(), trim(), empty_to_null())
    assert [n for n, c in held.items() if c.nullable] == ["a", "b", "e", "f"]
    assert held["b"].normalizers == (trim(),)
    assert held["g"].normalizers == (lower(), trim())
    assert Held.__table__.natural_keys == (("c",),)
    assert Held.__table__.primary_key == ("d",)


def test_keys() -> None:
    class Held(ManagedTable):
        __merge_keys__ = ["code", "region"]  # noqa: RUF012 - lists are accepted too
        __unique_constraints__ = (["day", "region"], ("code",))

        code: Annotated[Text, pk(), natural_key("code")]
        region: Annotated[Text, pk(), natural_key("place")]
        city: Annotated[Text, natural_key("place"), natural_key("name")]
        day: Date

    table = Held.__table__
    assert table.primary_key == ("code", "region")
    assert table.natural_keys == (("code",), ("region", "city"), ("city",))
    assert table.merge_keys == ("code", "region")
    assert table.unique_constraints == (("day", "region"), ("code",))
    assert table.unique_groups == (("code",), ("region", "city"), ("city",), ("day", "region"))


def test_the_decorator_keeps_settings() -> None:
    @ematix.table()
    class Held:
        __merge_keys__ = ("a",)
        __unique_constraints__ = (("a", "b"),)
        a: Text
        b: Text

    assert (Held.__table__.merge_keys, Held.__table__.unique_constraints) == (("a",), (("a", "b"),))
    assert str(Held.__table__.name) == "held"


def test_a_table_inside_a_function_sees_its_names() -> None:
    Money = Numeric[18, 4]
    key = pk()

    @ematix.table(schema="shop")
    class Prices:
        item: Annotated[BigInt, key]
        price: Money

    class More(ManagedTable):
        price: Money | None

    assert Prices.__table__.columns[1].type == t.Numeric[18, 4]
    assert Prices.__table__.primary_key == ("item",)
    assert More.__table__.columns[0].nullable


def test_abstract_bases_give_their_columns_first() -> None:
    class Common(ManagedTable):
        __abstract__ = True
        __schema__ = "shop"
        id: Annotated[BigInt, pk()]
        source = Column(t.Text())

    class Plain:
        created_at: TimestampTZ

    class Orders(Common):
        amount: Numeric[12, 2]

    @ematix.table(schema="mart")
    class Invoices(Common, Plain):
        amount: Numeric[12, 2]

    assert Orders.__table__.column_names == ("id", "amount", "source")
    assert str(Orders.__table__.name) == "shop.orders"
    assert Invoices.__table__.column_names == ("created_at", "id", "amount", "source")
    assert str(Invoices.__table__.name) == "mart.invoices"
    assert not hasattr(Common, "__table__")


def test_a_column_may_be_declared_again_in_a_derived_table() -> None:
    class Narrow(ManagedTable):
        id: Annotated[Integer, pk()]
        note: Text

    class Wide(Narrow):
        id: Annotated[BigInt, pk()]

    assert [str(c.type) for c in Wide.__table__.columns] == ["BigInt", "Text"]
    assert str(Narrow.__table__.columns[0].type) == "Integer"


def test_class_variables_and_methods_are_no_columns() -> None:
    class Held(ManagedTable):
        version: ClassVar[int] = 2
        id: Annotated[BigInt, pk()]

        @staticmethod
        def helper() -> int:
            return 1

    assert Held.__table__.column_names == ("id",)


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"slots": True}, {"kw_only": True}])
def test_dataclasses_stack_below(options: dict[str, Any]) -> None:
    @ematix.table(schema="shop")
    @dataclasses.dataclass(**options)
    class Order:
        order_id: Annotated[BigInt, pk()]
        note: Text | None = None

    assert Order.__table__.column_names == ("order_id", "note")
    assert Order(order_id=5).order_id == 5  # type: ignore[call-arg]


@pytest.mark.parametrize("options", [{}, {"slots": True}])
def test_dataclasses_stack_on_top(options: dict[str, Any]) -> None:
    @dataclasses.dataclass(**options)
    class Order(ManagedTable):
        order_id: Annotated[BigInt, pk()]
        note: Text | None

    assert Order.__table__.column_names == ("order_id", "note")
    assert Order(5, None).order_id == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CustomerDim", "customer_dim"),
        ("HTTPServer", "http_server"),
        ("Events", "events"),
        ("already_snake", "already_snake"),
        ("Top10Items", "top10_items"),
        ("A", "a"),
        ("MyXMLDoc2", "my_xml_doc2"),
    ],
)
def test_snake_case(name: str, expected: str) -> None:
    assert snake_case(name) == expected


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_]*", fullmatch=True))
def test_snake_case_only_adds_underscores(name: str) -> None:
    snake = snake_case(name)
    assert snake.replace("_", "") == name.replace("_", "").lower()
    assert snake_case(snake) == snake
    assert "___" not in snake or "__" in name


NAMES = ["order", "userName", "select", "a b", "日付", "CamelCase", "x" * 63]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_a_column(name: str) -> None:
    held = type("Held", (ManagedTable,), {"__annotations__": {name: BigInt}})
    assert held.__table__.column_names == (name,)  # type: ignore[attr-defined]


class Body:
    """Bodies of wrong tables; each is turned into one by the test below."""

    class Empty:
        pass

    class PlainType:
        a: int

    class NotCalled:
        a: Annotated[BigInt, pk]

    class NoMarker:
        a: Annotated[BigInt, "key"]

    class NullableKey:
        a: Annotated[BigInt | None, pk()]

    class NullableKeyByMarker:
        a: Annotated[BigInt, pk(), nullable()]

    class Added:
        _run_id: Text

    class AddedToo:
        _loaded_at: TimestampTZ

    class Unknown:
        a: NoSuchType  # type: ignore[name-defined]  # noqa: F821 - the mistake under test

    class NoLength:
        a: String

    class ZeroLength:
        a: String[0]

    class WrongMergeKey:
        __merge_keys__ = ("b",)
        a: BigInt

    class MergeKeyAsText:
        __merge_keys__ = "a"
        a: BigInt

    class WrongUnique:
        __unique_constraints__ = (("a", "b"),)
        a: BigInt

    class FlatUnique:
        __unique_constraints__ = ("a",)
        a: BigInt

    class UniqueAsText:
        __unique_constraints__ = "a"
        a: BigInt

    class Misspelt:
        __merge_key__ = ("a",)
        a: BigInt

    class MisspeltName:
        __table_name__ = "x"
        a: BigInt

    class Assigned:
        a: BigInt
        b = String[8]

    class AssignedClass:
        a: BigInt
        b = BigInt

    class WithValue:
        a: BigInt = 5

    class CaseOnly:
        a: BigInt
        A: BigInt

    class WrongColumn:
        a = Column(int)  # type: ignore[arg-type]

    class WrongNormalizer:
        a = Column(t.Text(), normalizers=(trim,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (Body.Empty, "table Empty declares no columns; add columns such as event_id"),
        (Body.PlainType, "column 'a' of table PlainType: int is not a column type; use a type of"),
        (Body.NotCalled, "column 'a' of table NotCalled: pk is not a column marker; call it: pk()"),
        (Body.NoMarker, "column 'a' of table NoMarker: 'key' is not a column marker; use pk()"),
        (Body.NullableKey, "'a' of table NullableKey: a part of the primary key cannot be nullabl"),
        (Body.NullableKeyByMarker, "a part of the primary key cannot be nullable; remove | None"),
        (Body.Added, "column '_run_id' of table Added is a name this system adds itself; rename"),
        (Body.AddedToo, "column '_loaded_at' of table AddedToo is a name this system adds itself"),
        (Body.Unknown, "table Unknown: cannot read its annotations: name 'NoSuchType' is not def"),
        (Body.NoLength, "column 'a' of table NoLength: String needs its parameters; write for exa"),
        (Body.ZeroLength, "String length must be a whole number above 0, not 0"),
        (Body.WrongMergeKey, "__merge_keys__ of table WrongMergeKey names 'b', which is not one o"),
        (Body.MergeKeyAsText, "__merge_keys__ of table MergeKeyAsText must be a list of column na"),
        (Body.WrongUnique, "__unique_constraints__ of table WrongUnique names 'b', which is not o"),
        (Body.FlatUnique, "__unique_constraints__ of table FlatUnique must be a list of lists of"),
        (Body.UniqueAsText, "__unique_constraints__ of table UniqueAsText must be a list of lists"),
        (Body.Misspelt, "table Misspelt has no setting __merge_key__; did you mean __merge_keys__"),
        (Body.MisspeltName, "has no setting __table_name__; did you mean __tablename__?"),
        (Body.Assigned, "column 'b' of table Assigned is assigned, not annotated; write a colon:"),
        (Body.AssignedClass, "column 'b' of table AssignedClass is assigned, not annotated"),
        (Body.WithValue, "column 'a' of table WithValue has a value, which a table ignores; to re"),
        (Body.CaseOnly, "columns 'a' and 'A' of table CaseOnly differ in case only"),
        (Body.WrongColumn, "column 'a' of table WrongColumn: int is not a column type"),
        (Body.WrongNormalizer, "column 'a' of table WrongNormalizer: trim is not a column marker"),
    ],
)
def test_wrong_tables(body: type, says: str) -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(DeclarationError) as caught:
        ematix.table(schema="shop")(body)
    assert f"{__file__}:{line}: " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schema": ""}, "a name must have from 1 to 63 bytes and no NUL"),
        ({"schema": 5}, "a name must have from 1 to 63 bytes and no NUL"),
        ({"name": ""}, "a name must have from 1 to 63 bytes and no NUL"),
        ({"name": "x" * 64}, "a name must have from 1 to 63 bytes and no NUL"),
        ({"name": "日" * 22}, "a name must have from 1 to 63 bytes and no NUL"),
        ({"name": "a\0b"}, "a name must have from 1 to 63 bytes and no NUL"),
        ({"scheme": "shop"}, "@ematix.table of Held has no option 'scheme'; did you mean 'schema'"),
    ],
)
def test_wrong_names(options: dict[str, Any], says: str) -> None:
    class Held:
        a: BigInt

    with pytest.raises(DeclarationError) as caught:
        ematix.table(**options)(Held)
    assert says in str(caught.value)
    assert caught.value.where is not None
    assert caught.value.where.file == __file__


def test_a_column_twice() -> None:
    with pytest.raises(DuplicateName, match="table Twice declares column 'a' twice"):

        class Twice(ManagedTable):
            a: BigInt
            b = Column(t.Text(), name="a")


def test_only_classes_are_tables() -> None:
    with pytest.raises(DeclarationError, match=r"@ematix\.table goes on a class"):
        ematix.table(schema="x")(lambda: None)  # type: ignore[arg-type]


def test_collecting_goes_on_after_a_wrong_table() -> None:
    with isolated_registry(collecting=True) as registry:

        class Bad(ManagedTable):
            a: int  # type: ignore[assignment]

        @ematix.table(scheme="x")  # type: ignore[arg-type]
        class Unknown:
            a: BigInt

        class Good(ManagedTable):
            a: BigInt

    assert isinstance(Good.__table__, Table)
    assert [type(e) for e in registry.errors] == [DeclarationError, UnknownName]
    assert all(e.where and e.where.file == __file__ for e in registry.errors)


def test_tables_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Events.__table__.doc = ""  # type: ignore[misc]
    assert hash(Events.__table__)


def test_errors_are_ours() -> None:
    assert issubclass(DuplicateName, EmatixError)
