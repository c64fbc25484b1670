"""Every error is one sentence, keeps its fields, and survives a trip between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

from ematix_flow import errors
from ematix_flow.errors import (
    BackendError,
    Cancelled,
    ConfigError,
    DataError,
    DeclarationError,
    EmatixError,
    EngineError,
    MissingExtra,
    NotAvailableYet,
    ProjectErrors,
    SchemaDrift,
    SourceLocation,
    TargetsFailed,
    Transient,
    Unsupported,
)

HERE = SourceLocation("pipelines.py", 7)

EVERY_CLASS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, EmatixError) and cls.__module__ == errors.__name__
]


def made(cls: type[EmatixError]) -> EmatixError:
    """One of each, whatever its constructor wants."""
    if cls is ProjectErrors:
        return ProjectErrors([DeclarationError("a", where=HERE), DeclarationError("b", fix="c")])
    if issubclass(cls, MissingExtra):
        return cls("reading S3", "runlog-s3")
    if issubclass(cls, SchemaDrift):
        return cls("shop.orders", ["column 'a' is missing"], fix="add it")
    if issubclass(cls, BackendError):
        return cls("refused", connection="warehouse", fix="look there")
    if issubclass(cls, TargetsFailed):
        return cls("1 of 2 targets failed", results={"shop.orders": "failed"}, fix="run it again")
    if issubclass(cls, NotAvailableYet):
        return cls("mode='merge'", where=HERE)
    return cls("it is wrong", fix="correct it", where=HERE)


def test_place_what_and_fix_make_one_sentence() -> None:
    error = EmatixError("column 'a'\n   is   unknown.", fix="remove\nit", where=HERE)
    assert str(error) == "pipelines.py:7: column 'a' is unknown; remove it"
    assert (error.what, error.fix, error.where) == (
        "column 'a'\n   is   unknown.",
        "remove\nit",
        HERE,
    )


def test_place_and_fix_may_be_missing() -> None:
    assert str(EmatixError("it broke.")) == "it broke."
    assert str(EmatixError("it broke", fix="mend it")) == "it broke; mend it"


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_pickling_loses_nothing(cls: type[EmatixError]) -> None:
    error = made(cls)
    error.what = f"pipeline 'x': {error.what}"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just pickled here
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert copy.__dict__.keys() == error.__dict__.keys()
    assert (copy.fix, copy.where, copy.exit_code) == (error.fix, error.where, error.exit_code)


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_every_error_is_one_line(cls: type[EmatixError]) -> None:
    assert "\n" not in str(made(cls))


def test_exit_codes_tell_whose_fault_it_is() -> None:
    wrong_input = {DeclarationError, ConfigError, Unsupported}
    for cls in EVERY_CLASS:
        expected = 2 if any(issubclass(cls, c) for c in wrong_input) else 1
        if issubclass(cls, Cancelled):
            expected = 130
        assert cls.exit_code == expected, cls


def test_the_tree_in_the_docstring_names_every_class() -> None:
    for cls in EVERY_CLASS:
        assert cls.__name__ in (errors.__doc__ or ""), cls


def test_a_report_counts_and_holds_its_errors() -> None:
    report = made(ProjectErrors)
    assert isinstance(report, ProjectErrors)
    assert str(report) == "2 errors in the project: pipelines.py:7: a | b; c"
    assert [e.what for e in report.errors] == ["a", "b"]
    assert str(ProjectErrors([DeclarationError("a")])) == "1 error in the project: a"


def test_a_missing_extra_is_an_import_error_too() -> None:
    error = MissingExtra("reading S3", "runlog-s3")
    assert isinstance(error, ImportError)
    assert str(error) == (
        "reading S3 needs packages that are not installed; "
        'install them with: pip install "ematix-flow[runlog-s3]"'
    )


def test_a_backend_error_names_its_connection() -> None:
    error = Transient("the server hung up", connection="warehouse", fix="try again")
    assert str(error) == "connection 'warehouse': the server hung up; try again"
    assert error.connection == "warehouse"


def test_drift_lists_every_difference() -> None:
    error = SchemaDrift("shop.orders", ["a is missing", "b is extra"], fix="alter it")
    assert isinstance(error, DataError)
    assert error.differences == ("a is missing", "b is extra")
    assert str(error) == (
        "table shop.orders differs from its declaration: a is missing; b is extra; alter it"
    )


def test_what_comes_later_says_so() -> None:
    error = NotAvailableYet("mode='merge'", where=HERE)
    assert str(error) == (
        "pipelines.py:7: mode='merge' is not available yet in this version; "
        "remove it to run the pipeline now"
    )


def test_locations_sort_by_file_and_line() -> None:
    places = [SourceLocation("b.py", 1), SourceLocation("a.py", 10), SourceLocation("a.py", 9)]
    assert [str(p) for p in sorted(places)] == ["a.py:9", "a.py:10", "b.py:1"]


def test_engine_errors_are_not_the_users_fault() -> None:
    assert not issubclass(EngineError, DeclarationError | ConfigError | DataError)
