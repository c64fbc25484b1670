"""The public names are all there, sorted, and what they say they are."""

from __future__ import annotations

import inspect

import pytest

import ematix_flow
from ematix_flow import connections, ematix, errors, markers, normalize, transforms, types


def test_every_public_name_exists() -> None:
    assert len(set(ematix_flow.__all__)) == len(ematix_flow.__all__)
    for name in ematix_flow.__all__:
        assert hasattr(ematix_flow, name), name


def test_every_type_is_exported() -> None:
    found = {
        name
        for name, cls in vars(types).items()
        if inspect.isclass(cls) and issubclass(cls, types.ColumnType)
    } - {"ColumnType", "AnyNumeric"}
    assert found <= set(ematix_flow.__all__)


def test_every_connection_is_exported() -> None:
    found = {cls.__name__ for cls in connections.CONNECTION_CLASSES.values()}
    assert found <= set(ematix_flow.__all__)
    for cls in connections.CONNECTION_CLASSES.values():
        assert getattr(ematix_flow, cls.__name__) is cls


def test_markers_and_decorators_are_exported() -> None:
    assert {"pk", "natural_key", "nullable"} <= set(ematix_flow.__all__)
    assert ematix_flow.pk is markers.pk
    assert ematix.job is ematix.pipeline


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert ematix_flow.__version__ == version("ematix-flow")


@pytest.mark.parametrize(
    "module", [ematix_flow, connections, ematix, errors, markers, normalize, transforms, types]
)
def test_what_users_touch_is_documented(module: object) -> None:
    assert module.__doc__
    for name, held in vars(module).items():
        own = getattr(held, "__module__", "").startswith("ematix_flow")
        if not name.startswith("_") and own and (inspect.isclass(held) or inspect.isroutine(held)):
            assert inspect.getdoc(held), name


def test_a_misspelt_name_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        from ematix_flow import PostgressConnection  # type: ignore[attr-defined]  # noqa: F401
