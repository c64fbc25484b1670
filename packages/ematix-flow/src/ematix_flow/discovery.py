"""Loads a user's module, file or folder inside a registry, and reports all that is wrong."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.config import PROJECT_FILE, project_settings
from ematix_flow.errors import ConfigError, DeclarationError, ProjectErrors, SourceLocation
from ematix_flow.graph import check_dependencies
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import Registry, isolated_registry


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
        return self.registry.pipeline(name)

    def raise_errors(self) -> None:
        """Raise everything that is wrong in one report."""
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else ProjectErrors(self.errors)


@contextlib.contextmanager
def load_project(modules: Sequence[str] = ()) -> Iterator[Project]:
    """Load modules, files or folders; without any, those of the project in this folder."""
    named = tuple(modules) or project_settings().modules
    if not named:
        raise ConfigError(
            f"there is no project here: no --module was given and {PROJECT_FILE} names none",
            fix="pass --module my_pipelines (a module, a file or a folder) or run: flow init .",
        )
    with isolated_registry(collecting=True) as registry, _importing_from_here():
        for name in named:
            for path in _files_of(name):
                _load(path, registry)
        errors = list(registry.errors)
        dependency_errors = check_dependencies(
            {p.name: p.spec for p in registry.pipelines.values()}, broken=registry.broken
        )
        yield Project(registry, (*errors, *dependency_errors), named)


@contextlib.contextmanager
def _importing_from_here() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _files_of(name: str) -> list[str]:
    """A folder's Python files; otherwise the name itself."""
    path = Path(name)
    if path.is_dir() and not (path / "__init__.py").exists():
        files = sorted(str(p) for p in path.glob("*.py"))
        if not files:
            raise ConfigError(f"the folder {name} holds no Python files", fix="check --module")
        return files
    return [name]


def _load(name: str, registry: Registry) -> None:
    try:
        if name.endswith(".py"):
            _load_file(Path(name))
        elif Path(name).is_dir():
            _load_package(Path(name))
        else:
            _load_module(name)
    except DeclarationError as error:
        registry.errors.append(error)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything at import
        registry.errors.append(_import_failure(name, error))


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", fix="check --module")
    module_name = path.stem
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python", fix="check --module")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)


def _load_package(path: Path) -> None:
    parent = str(path.resolve().parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    _load_module(path.resolve().name)
    for file in sorted(path.glob("*.py")):
        if file.stem != "__init__":
            _load_module(f"{path.resolve().name}.{file.stem}")


def _load_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ConfigError(
            f"there is no module {name!r}",
            fix="check --module; it takes a module, a .py file or a folder",
        )
    sys.modules.pop(name, None)
    importlib.import_module(name)


def _import_failure(name: str, error: Exception) -> DeclarationError:
    if isinstance(error, SyntaxError) and error.filename:
        where = SourceLocation(error.filename, error.lineno or 1)
        return DeclarationError(f"syntax error: {error.msg}", fix="correct the file", where=where)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    user = [f for f in frames if "/ematix_flow/" not in f.filename]
    last = (user or frames)[-1]
    return DeclarationError(
        f"{name} failed while it was loaded: {type(error).__name__}: {error}",
        where=SourceLocation(last.filename, last.lineno or 1),
    )
