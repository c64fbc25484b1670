"""Loads a user's module, file or folder inside a registry, and reports all that is wrong."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.config import PROJECT_FILE, connection_names, project_settings
from ematix_flow.errors import (
    ConfigError,
    DeclarationError,
    EmatixError,
    NoSuchModule,
    ProjectErrors,
    SourceLocation,
    UnknownName,
)
from ematix_flow.graph import check_dependencies
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import Broken, Registry, isolated_registry

_PACKAGE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Project:
    """What was declared, and what was wrong."""

    registry: Registry
    errors: tuple[DeclarationError, ...]
    modules: tuple[str, ...]

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines that can run, in order of declaration."""
        return tuple(self.registry.pipelines.values())

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline of that name; a broken one raises its own error."""
        try:
            return self.registry.pipeline(name)
        except UnknownName:
            # It may stand below the line at which its module failed to load.
            failures = self.registry.load_failures
            if failures:
                raise failures[0] if len(failures) == 1 else ProjectErrors(failures) from None
            raise


@contextlib.contextmanager
def load_project(modules: Sequence[str] = ()) -> Iterator[Project]:
    """Load modules, files or folders; without any, those of the project in this folder."""
    named = tuple(modules) or project_settings().modules
    if not named:
        raise ConfigError(
            f"there is no project here: no --module was given and {PROJECT_FILE} names none",
            fix="pass --module my_pipelines (a module, a file or a folder) or run: flow init .",
        )
    with isolated_registry(collecting=True) as registry, _importing_from_here() as held:
        for name in named:
            for shown, load in _loads(name, held):
                _attempt(shown, load, registry)
        _set_aside_the_unconnected(registry)
        errors = list(registry.errors)
        dependency_errors = check_dependencies(
            {p.name: p.spec for p in registry.pipelines.values()}, broken=registry.broken
        )
        yield Project(registry, (*errors, *dependency_errors), named)


@contextlib.contextmanager
def _importing_from_here() -> Iterator[frozenset[str]]:
    """Imports look here first; gives the modules that were imported before.

    Afterwards the user's modules are as unknown as they were: a module that the next load would
    merely find again declares nothing again.
    """
    importlib.invalidate_caches()
    path, held = list(sys.path), dict(sys.modules)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield frozenset(held)
    finally:
        for name, module in list(sys.modules.items()):
            if module is not held.get(name) and _is_the_users(name):
                del sys.modules[name]
        sys.modules.update({name: m for name, m in held.items() if name not in sys.modules})
        sys.path[:] = path


def _is_the_users(module: str) -> bool:
    """Whether a module may be imported anew: an installed one, such as a driver, may not."""
    file = _file_of(module)
    return file is not None and not file.startswith(_installed()) and "site-packages" not in file


@functools.cache
def _installed() -> tuple[str, ...]:
    """Where code lives that is not the user's own."""
    paths = sysconfig.get_paths()
    return (_PACKAGE, paths["stdlib"], paths["platlib"], paths["purelib"])


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _loads(name: str, held: frozenset[str]) -> list[tuple[str, Callable[[], None]]]:
    """What to load for one ``--module``, piece by piece, each with its name for messages."""
    path = Path(name)
    if not name.strip():
        raise NoSuchModule("--module is empty", fix="name a module, a .py file or a folder")
    if name.endswith(".py"):
        return [(name, functools.partial(_load_file, path, held))]
    if not path.is_dir():
        return [(name, functools.partial(_load_module, name, held))]
    if (path / "__init__.py").exists():
        files = [f for f in sorted(path.rglob("*.py")) if (f.parent / "__init__.py").exists()]
    else:
        files = sorted(path.glob("*.py"))
    if not files:
        raise ConfigError(f"the folder {name} holds no Python files", fix="check --module")
    return [(str(file), functools.partial(_load_file, file, held)) for file in files]


def _attempt(name: str, load: Callable[[], None], registry: Registry) -> None:
    """One file that fails does not stop the others."""
    try:
        load()
    except NoSuchModule:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        failure = _import_failure(name, error)
        # One bad line is met again by every module that imports its module.
        if failure.where not in [known.where for known in registry.load_failures]:
            registry.fail_to_load(failure)


def _load_file(path: Path, held: frozenset[str]) -> None:
    if not path.is_file():
        raise NoSuchModule(f"there is no file {path}", fix="check --module")
    file = path.resolve()
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if len(parts) > 1:
        _load_module(".".join(parts).removesuffix(".__init__"), held)
        return
    if any(_file_of(module) == str(file) for module in sys.modules.keys() - held):
        return  # another file of this load has imported it
    name = _free_name(file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise NoSuchModule(f"{path} cannot be loaded as Python", fix="check --module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _free_name(file: Path) -> str:
    """The file's name as a module's, unless another module goes by that name."""
    name, number = file.stem, 1
    while name in sys.stdlib_module_names or _file_of(name) not in (None, str(file)):
        number += 1
        name = f"{file.stem}_{number}"
    return name


def _load_module(name: str, held: frozenset[str]) -> None:
    try:
        found = None if name.startswith((".", "__")) else importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it exists, and imports something that does not
        found = None
    except ValueError:
        found = None
    if found is None:
        raise NoSuchModule(
            f"there is no module {name!r}",
            fix="check --module; it takes a module, a .py file or a folder",
        )
    if name in held and (_is_the_users(name) or "site-packages" in str(_file_of(name))):
        sys.modules.pop(name, None)
    importlib.import_module(name)


def _import_failure(name: str, error: Exception | SystemExit) -> DeclarationError:
    if isinstance(error, SyntaxError) and error.filename:
        where = SourceLocation(error.filename, error.lineno or 1)
        return DeclarationError(f"syntax error: {error.msg}", fix="correct the file", where=where)
    # Generated code, such as a dataclass's own methods, has no file.
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")
    ]
    user = [f for f in frames if not f.filename.startswith(_installed())]
    last = (user or frames)[-1]
    where = SourceLocation(last.filename, last.lineno or 1)
    if isinstance(error, EmatixError):
        return DeclarationError(error.what, fix=error.fix, where=error.where or where)
    missing = isinstance(error, ModuleNotFoundError)
    return DeclarationError(
        f"{name} failed while it was loaded: {type(error).__name__}: {error}",
        fix="install it, or correct the import" if missing else "correct that line",
        where=where,
    )


def _set_aside_the_unconnected(registry: Registry) -> None:
    """A pipeline over a connection that is declared wrongly is broken for the same reason."""
    for pipeline in list(registry.pipelines.values()):
        spec = pipeline.spec
        for connection in (spec.source, *(target.connection for target in spec.targets)):
            broken = registry.broken.get(connection)
            if broken is None or connection in connection_names():
                continue
            del registry.pipelines[pipeline.name]
            registry.broken[pipeline.name] = Broken(pipeline.name, broken.error)
            break
