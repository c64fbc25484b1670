"""Loading a user's code: by module, file, folder or package, with all that is wrong in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.discovery import Project, load_project
from ematix_flow.errors import (
    ConfigError,
    DeclarationError,
    DependencyCycle,
    DuplicateName,
    NoSuchModule,
    ProjectErrors,
    UnknownName,
)
from ematix_flow.registry import active_registry

HEAD = """
from typing import Annotated
from ematix_flow import BigInt, DuckDBConnection, ematix, ManagedTable, pk, register_connection

register_connection(DuckDBConnection(name="wh", path="wh.duckdb"))

class Numbers(ManagedTable):
    number: Annotated[BigInt, pk()]
"""


def pipeline(function: str, **options: str) -> str:
    """The text of a sound pipeline, unless the options are not."""
    given = {"target": "Numbers", "target_connection": '"wh"', **options}
    shown = ", ".join(f"{k}={v}" for k, v in given.items())
    return (
        f"\n@ematix.pipeline({shown})\ndef {function}(conn):\n"
        "    return 'SELECT 1::BIGINT AS number'\n"
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    held = set(sys.modules)
    path = list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - held:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def line_of(file: Path, words: str) -> int:
    lines = file.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if words in line)


def names(project: Project) -> list[str]:
    return [p.name for p in project.pipelines]


class TestWays:
    @pytest.mark.parametrize("module", ["flows_a", "flows_a.py", "./flows_a.py"])
    def test_a_module_or_its_file(self, module: str) -> None:
        write("flows_a.py", HEAD + pipeline("load"))
        with load_project([module]) as project:
            assert names(project) == ["load"]
            assert project.errors == ()
            assert project.modules == (module,)
            assert active_registry() is project.registry
        assert active_registry() is not project.registry

    def test_an_absolute_file_with_a_neighbour(self, folder: Path) -> None:
        write("deep/tables_b.py", HEAD)
        write("deep/flows_b.py", "from tables_b import *\n" + pipeline("load"))
        with load_project([str(folder / "deep" / "flows_b.py")]) as project:
            assert names(project) == ["load"]

    def test_a_folder(self) -> None:
        write("flows/b.py", HEAD + pipeline("second"))
        write("flows/a.py", HEAD + pipeline("first"))
        write("flows/notes.txt", "no Python")
        write("flows/deeper/c.py", HEAD + pipeline("third"))
        with load_project(["flows"]) as project:
            assert names(project) == ["first", "second"]

    def test_a_folder_whose_files_import_each_other(self) -> None:
        write("flows/z_tables.py", HEAD + "\nprint('once')\n")
        write("flows/a.py", "from z_tables import *\n" + pipeline("first"))
        write("flows/b.py", "from z_tables import *\n" + pipeline("second"))
        with load_project(["flows"]) as project:
            assert names(project) == ["first", "second"]
            assert list(project.registry.connections) == ["wh"]
            assert sys.modules["a"].Numbers is sys.modules["b"].Numbers

    def test_a_package(self) -> None:
        write("shop/__init__.py", "from shop.tables import *\n")
        write("shop/tables.py", HEAD)
        write("shop/orders.py", "from .tables import *\n" + pipeline("orders"))
        write("shop/more/__init__.py", "")
        write("shop/more/items.py", "from ..tables import *\n" + pipeline("items"))
        write("shop/scripts/run.py", "raise SystemExit('not part of the package')")
        with load_project(["shop"]) as project:
            assert sorted(names(project)) == ["items", "orders"]
            assert project.errors == ()

    def test_one_file_of_a_package(self) -> None:
        write("shop2/__init__.py", "")
        write("shop2/tables.py", HEAD)
        write("shop2/orders.py", "from .tables import *\n" + pipeline("orders"))
        write("shop2/other.py", "from .tables import *\n" + pipeline("other"))
        for module in ("shop2/orders.py", "shop2.orders"):
            with load_project([module]) as project:
                assert names(project) == ["orders"]
                assert project.errors == ()

    def test_several(self) -> None:
        write("one.py", HEAD + pipeline("a", depends_on='["b"]'))
        write("two.py", HEAD + pipeline("b"))
        with load_project(["one", "two.py"]) as project:
            assert names(project) == ["a", "b"]
            assert project.errors == ()

    def test_those_of_the_project(self) -> None:
        write("flows_c.py", HEAD + pipeline("load"))
        write(".ematix-flow.toml", '[project]\nmodules = ["flows_c.py"]\n')
        with load_project() as project:
            assert names(project) == ["load"]

    def test_no_project(self) -> None:
        with pytest.raises(ConfigError, match="there is no project here") as caught, load_project():
            pass
        assert "--module" in caught.value.fix


class TestAgain:
    def test_a_second_load_declares_everything_again(self) -> None:
        write("tables_d.py", HEAD)
        write("flows_d.py", "from tables_d import *\n" + pipeline("load"))
        for module in ("flows_d", "flows_d.py", "flows_d"):
            with load_project([module]) as project:
                assert names(project) == ["load"]
                assert list(project.registry.connections) == ["wh"]

    def test_a_changed_file_is_read_again(self) -> None:
        write("flows_e.py", HEAD + pipeline("before"))
        with load_project(["flows_e"]) as project:
            assert names(project) == ["before"]
        write("flows_e.py", HEAD + pipeline("afterwards"))
        with load_project(["flows_e"]) as project:
            assert names(project) == ["afterwards"]

    def test_what_the_program_itself_imported_is_declared_again(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        write("flows_f.py", HEAD + pipeline("load"))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            import flows_f  # type: ignore[import-not-found]

            with load_project(["flows_f"]) as project:
                assert names(project) == ["load"]
            assert project.registry.pipelines["load"] is not flows_f.load
            assert sys.modules["flows_f"] is flows_f

    def test_afterwards_nothing_of_it_is_left(self) -> None:
        write("helper_o.py", "answer = 42\n")
        write("flows_o.py", HEAD + pipeline("load") + "def later():\n    import helper_o\n")
        before = dict(sys.modules)
        with load_project(["flows_o"]):
            sys.modules["flows_o"].later()
            assert "helper_o" in sys.modules
        assert sys.modules == before

    def test_installed_packages_are_left_alone(self, folder: Path) -> None:
        # A virtual environment inside the project's folder, and a driver imported by a pipeline.
        package = write(".venv/lib/site-packages/driver_xyz/__init__.py", "loads = []\n").parent
        text = (
            f"import sys\nsys.path.append({str(package.parent.resolve())!r})\nimport driver_xyz\n"
        )
        write("flows_n.py", text + "driver_xyz.loads.append(1)\nimport ematix_flow.transforms\n")
        for _ in range(2):
            with load_project(["flows_n"]) as project:
                assert project.errors == ()
        assert sys.modules["driver_xyz"].loads == [1, 1]

    def test_a_file_named_like_a_standard_module_hides_nothing(self) -> None:
        write("odd/json.py", HEAD + pipeline("load"))
        with load_project(["odd/json.py"]) as project:
            assert names(project) == ["load"]
            assert sys.modules["json"] is json

    def test_two_files_of_one_name(self) -> None:
        write("a/flows.py", HEAD + pipeline("first"))
        write("b/flows.py", HEAD + pipeline("second"))
        with load_project(["a/flows.py", "b/flows.py"]) as project:
            assert names(project) == ["first", "second"]
            assert project.errors == ()

    def test_one_pipeline_in_two_files(self, folder: Path) -> None:
        write("a/flows.py", HEAD + pipeline("load"))
        write("b/flows.py", HEAD + pipeline("load"))
        with load_project(["a/flows.py", "b/flows.py"]) as project:
            (error,) = project.errors
        assert isinstance(error, DuplicateName)
        assert error.where is not None
        assert error.where.file == str(folder / "b/flows.py")
        assert f"is already declared at {folder / 'a/flows.py'}:" in error.what


class TestNothingThere:
    @pytest.mark.parametrize(
        ("module", "says"),
        [
            ("nowhere_at_all", "there is no module 'nowhere_at_all'; check --module; it takes a"),
            ("nowhere.at.all", "there is no module 'nowhere.at.all'"),
            ("json.nowhere", "there is no module 'json.nowhere'"),
            (".relative", "there is no module '.relative'"),
            ("nowhere.py", "there is no file nowhere.py; check --module"),
            ("empty", "the folder empty holds no Python files; check --module"),
            ("a/b", "there is no module 'a/b'"),
            ("", "--module is empty"),
            ("__main__", "there is no module '__main__'"),
        ],
    )
    def test_what_cannot_be_found(self, module: str, says: str) -> None:
        Path("empty").mkdir()
        with pytest.raises(ConfigError) as caught, load_project([module]):
            pass
        assert says in str(caught.value)
        assert caught.value.exit_code == 2

    def test_it_is_said_even_beside_what_can(self) -> None:
        write("flows_g.py", HEAD)
        with pytest.raises(NoSuchModule), load_project(["flows_g.py", "nowhere"]):
            pass


class TestFailures:
    @pytest.mark.parametrize("by_file", [True, False])
    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ("def broken(:  # here", "syntax error: "),
            ("import no_such_package_xyz  # here", "ModuleNotFoundError: No module named 'no_suc"),
            ("1 / 0  # here", "ZeroDivisionError: division by zero"),
            ("raise SystemExit(3)  # here", "SystemExit: 3"),
            ("from ematix_flow import Nothing  # here", "ImportError: cannot import name 'Nothi"),
            ("ematix.piepline()  # here", "AttributeError: "),
            ("Annotated[BigInt]  # here", "TypeError: "),
            (
                "DuckDBConnection(name='x', file='y')  # here",
                "DuckDBConnection has no field 'file'",
            ),
            ("DuckDBConnection(name='x')  # here", "connection 'x' of kind 'duckdb' needs path="),
            ("register_connection('x')  # here", "register_connection takes a connection, not st"),
        ],
    )
    def test_the_line_is_named(self, bad: str, says: str, by_file: bool, folder: Path) -> None:
        file = write("flows_h.py", HEAD + pipeline("before") + bad + "\n" + pipeline("behind"))
        with load_project(["flows_h.py" if by_file else "flows_h"]) as project:
            (error,) = project.errors
            assert type(error) is DeclarationError or isinstance(error, UnknownName)
            assert error.where is not None
            assert error.where.file == str(folder / "flows_h.py")
            assert error.where.line == line_of(file, "# here")
            assert says in error.what
            assert error.fix
            if "syntax" not in says:
                assert names(project) == ["before"]
            # What stands below the bad line was never seen: the bad line is the reason.
            with pytest.raises(DeclarationError) as caught:
                project.pipeline("behind")
            assert caught.value is error

    def test_the_deepest_line_of_the_users_own_code(self, folder: Path) -> None:
        file = write("deep_i.py", "def fail():\n    return {}['x']  # here\n")
        write("flows_i.py", "from deep_i import fail\nfail()\n")
        with load_project(["flows_i"]) as project:
            (error,) = project.errors
        assert str(error.where) == f"{folder / file}:2"

    def test_a_package_that_cannot_be_imported_is_not_a_missing_one(self, folder: Path) -> None:
        write("shop4/__init__.py", "\nimport no_such_package_xyz\n")
        write("shop4/orders.py", HEAD + pipeline("orders"))
        for module in ("shop4.orders", "shop4/orders.py", "shop4"):
            with load_project([module]) as project:
                (error,) = project.errors
            assert str(error.where) == f"{folder / 'shop4/__init__.py'}:2"
            assert "No module named 'no_such_package_xyz'" in error.what
            assert error.fix == "install it, or correct the import"

    def test_one_bad_file_does_not_stop_the_others(self) -> None:
        write("flows/a.py", "1 / 0\n")
        write("flows/b.py", HEAD + pipeline("good"))
        write("flows/c.py", "def (\n")
        with load_project(["flows"]) as project:
            assert names(project) == ["good"]
            assert len(project.errors) == 2

    def test_one_bad_module_of_a_package_does_not_stop_the_others(self) -> None:
        write("shop3/__init__.py", "")
        write("shop3/a.py", "1 / 0\n")
        write("shop3/b.py", HEAD + pipeline("good"))
        with load_project(["shop3"]) as project:
            assert names(project) == ["good"]
            assert len(project.errors) == 1

    def test_one_bad_line_is_reported_once(self) -> None:
        write("flows/a.py", "import z\n")
        write("flows/b.py", "import z\n")
        write("flows/z.py", "1 / 0\n")
        with load_project(["flows"]) as project:
            (error,) = project.errors
            assert error.where is not None
            assert error.where.file.endswith("z.py")


TEN_MISTAKES = """
@ematix.connection
class typo:
    kind = "postgers"

class BadTable(ManagedTable):
    a: int

class BadSetting(ManagedTable):
    __merge_key__ = ("number",)
    number: BigInt
"""


class TestOneReport:
    @pytest.fixture
    def mistakes(self) -> Path:
        return write(
            "flows_j.py",
            HEAD
            + TEN_MISTAKES
            + pipeline("good_one")
            + pipeline("bad_mode", mode='"upsert"')
            + pipeline("bad_cron", schedule='"every day"')
            + pipeline("bad_option", targt="Numbers")
            + pipeline("bad_retry", retry='{"attempts": 3}')
            + pipeline("bad_key", keys='["numbr"]')
            + pipeline("bad_zone", schedule='"0 0 * * *"', timezone='"Mars/Base"')
            + pipeline("bad_upstream", depends_on='["nothing"]')
            + pipeline("round_a", depends_on='["round_b"]')
            + pipeline("round_b", depends_on='["round_a"]')
            + pipeline("on_bad_table", target="BadTable")
            + pipeline("good_two", depends_on='["good_one"]'),
        )

    def test_every_mistake_is_in_it_with_its_line(self, mistakes: Path, folder: Path) -> None:
        with load_project(["flows_j"]) as project:
            assert len(project.errors) == 11
            for error in project.errors:
                assert error.where is not None
                assert error.where.file == str(folder / mistakes)
                assert "\n" not in str(error)
            lines = {e.where.line for e in project.errors if e.where}
            assert len(lines) == 11
            said = {e.where.line: str(e) for e in project.errors if e.where}
            text = mistakes.read_text().splitlines()
            for name in ("bad_mode", "bad_cron", "bad_option", "bad_retry", "bad_key", "bad_zone"):
                decorator = line_of(mistakes, f"def {name}(") - 1
                assert text[decorator - 1].startswith("@ematix.pipeline")
                assert f"pipeline '{name}'" in said[decorator]
        report = ProjectErrors(project.errors)
        assert str(report).startswith("11 errors in the project: ")
        assert report.exit_code == 2

    def test_the_good_ones_still_run(self, mistakes: Path) -> None:
        with load_project(["flows_j"]) as project:
            assert {"good_one", "good_two"} <= set(names(project))
            result = project.pipeline("good_one").sync()
            assert (result.status, result.rows_inserted, result.path) == ("succeeded", 1, "same_db")

    def test_the_bad_ones_say_why(self, mistakes: Path) -> None:
        with load_project(["flows_j"]) as project:
            for name, says in {
                "bad_mode": "mode='upsert'",
                "bad_option": "has no option 'targt'",
                "on_bad_table": "int is not a column type",
            }.items():
                with pytest.raises(DeclarationError, match=says):
                    project.pipeline(name)
            assert any(isinstance(e, DependencyCycle) for e in project.errors)

    def test_one_error_is_raised_as_itself(self) -> None:
        write("flows_k.py", HEAD + pipeline("bad", mode='"upsert"'))
        with load_project(["flows_k"]) as project:
            (error,) = project.errors
        assert isinstance(error, UnknownName)

    def test_duplicates_name_both_places(self, folder: Path) -> None:
        text = HEAD + pipeline("first", name='"load"') + pipeline("second", name='"load"')
        file = write("flows_l.py", text)
        with load_project(["flows_l"]) as project:
            (error,) = project.errors
        path = folder / file
        assert str(error).startswith(
            f"{path}:{line_of(file, 'def second') - 1}: pipeline 'load' is already declared at "
            f"{path}:{line_of(file, 'def first') - 1}; "
        )

    def test_what_stands_on_a_broken_connection(self) -> None:
        bad = '\n@ematix.connection\nclass bad_wh:\n    kind = "postgers"\n'
        by_name = pipeline("by_name", target_connection='"bad_wh"')
        by_object = pipeline("by_object", target_connection="bad_wh")
        write("flows_m.py", HEAD + bad + by_name + by_object + pipeline("good"))
        with load_project(["flows_m"]) as project:
            assert names(project) == ["good"]
            assert len(project.errors) == 1
            for name in ("by_name", "by_object"):
                with pytest.raises(DeclarationError, match="did you mean 'postgres'"):
                    project.pipeline(name)
