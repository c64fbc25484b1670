"""Every promise is tested on every backend: the ``backend`` fixture goes through them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.support import RECORDING, Proof, read_record, write_record
from ematix_flow import DuckDBConnection, ManagedTable, ematix
from ematix_flow.backends.loading import backend_class
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import register_connection
from harness.base import Harness, all_harnesses

_DIFFERS = pytest.StashKey[bool]()

_proof = Proof([cls.name for cls in all_harnesses()])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        _proof.note(report.nodeid, passed=report.passed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run whose results are not what the documentation says."""
    record = read_record()
    if os.environ.get(RECORDING):
        proven = _proof.matrix()
        for backend, features in proven.items():
            record[backend] = sorted({*record.get(backend, ()), *features})
        write_record(dict(sorted(record.items())))
    elif _proof.contradicts(record) and not session.testsfailed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[_DIFFERS] = True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.stash.get(_DIFFERS, False):
        terminalreporter.write_line(
            "docs/reference/support.json is not what the conformance tests prove: run them with "
            f"{RECORDING}=1, then scripts/generate_reference.py",
            red=True,
        )


def abilities(cls: type[Harness]) -> set[str]:
    """What a backend declares, in the words of ``@pytest.mark.needs``."""
    declared = backend_class(cls.kind).capabilities
    found = set(declared.verbs)
    found |= {"source"} if declared.source else set()
    found |= {"target"} if declared.target else set()
    found |= {"same_database"} if declared.same_database else set()
    found |= {"statements"} if declared.statements else set()
    found |= {f"{act} column" for act in declared.alterations}
    return found if declared.refused_types else found | {"every type"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test the backends that declare what it needs; by ability, never by name."""
    if "backend" not in metafunc.fixturenames:
        return
    needed = {"target", "insert"}
    for mark in metafunc.definition.iter_markers("needs"):
        needed |= set(mark.args)
    chosen = [cls for cls in all_harnesses() if needed <= abilities(cls)]
    metafunc.parametrize("backend", [_parameter(cls) for cls in chosen], indirect=True)


def _parameter(cls: type[Harness]) -> Any:
    marks = [pytest.mark.services(cls.service)] if cls.service else []
    return pytest.param(cls, id=cls.name, marks=marks)


_turns: dict[str, list[str]] = {}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests and backends meet pairwise; ``make soak`` runs every test on every backend.

    Kinds of backends whose changes Spark computes share that code and are slow: two tests out of
    three take one of them, each in its turn. Of the others a test takes every second kind, the
    next test the rest. Harnesses of one kind, which share all of its code, take turns, too.
    """
    call = getattr(item, "callspec", None)
    given: type[Harness] | None = None if call is None else call.params.get("backend")
    if call is None or given is None or item.get_closest_marker("every_harness"):
        return
    others = [piece for piece in call.id.split("-") if piece != given.name]
    case = "-".join([item.name.partition("[")[0], *others])
    cases = _turns.setdefault(str(item.path), [])
    if case not in cases:
        cases.append(case)
    if not is_its_turn(given, cases.index(case)):
        item.add_marker(pytest.mark.soak)


def is_its_turn(given: type[Harness], turn: int) -> bool:
    """Whether every push runs the test of this number on a backend."""
    family = [cls for cls in all_harnesses() if cls.by_spark == given.by_spark]
    kinds = list(dict.fromkeys(cls.kind for cls in family))
    every = len(kinds) + 1 if given.by_spark else 2
    alike = [cls.name for cls in family if cls.kind == given.kind]
    of_this_kind = turn % every == kinds.index(given.kind) % every
    return of_this_kind and turn // every % len(alike) == alike.index(given.name)


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """One backend, reached by its own driver."""
    cls: type[Harness] = request.param
    server = request.getfixturevalue(cls.service) if cls.service else None
    held = cls(tmp_path, server)
    yield held
    held.close()


Rows = Sequence[tuple[Any, ...]]
Loader = Callable[..., Pipeline]


@pytest.fixture
def loader(backend: Harness, engine: object) -> Loader:
    """Declares a pipeline that loads Python rows into a table of the backend."""

    def declare(
        table: type[ManagedTable], rows: Rows, schema: str, *, mode: str = "append", **options: Any
    ) -> Pipeline:
        register_connection(backend.connection("target"))
        # The rows come from Python; a connection that can be read only has to be named.
        register_connection(DuckDBConnection(name="rows", path=str(backend.folder / "rows.duckdb")))
        held = list(rows)

        @ematix.pipeline(
            target=table,
            source_connection="rows",
            target_connection="target",
            mode=mode,
            name=f"load_{table.__name__.lower()}",
            **options,
        )
        def load(spark: Any) -> Any:
            return spark.createDataFrame(held, schema)

        return load

    return declare
