"""The user's own modules on their way to executors: files beside the project, not packages.

What is installed has to be installed on every machine; what a project imports from its own
folders travels with the run.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

_MOST_FILES = 5000


def own_files() -> dict[str, Path]:
    """Every source file of the user's imported modules, by its place in an archive.

    Of a package all files are taken, whether imported yet or not.
    """
    found: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name == "__main__" or not file.endswith(".py"):
            continue
        path = Path(file).absolute()
        top = name.partition(".")[0]
        inside = top != name and getattr(sys.modules.get(top), "__file__", None) is not None
        if inside or not path.is_file() or not _is_the_users(path):
            continue
        if top != name:
            # In a folder that is a package without saying so.
            place = name.replace(".", "/")
            found[f"{place}/__init__.py" if path.name == "__init__.py" else f"{place}.py"] = path
        elif path.name == "__init__.py":
            root = path.parent
            found.update((f"{name}/{f.relative_to(root).as_posix()}", f) for f in _sources(root))
        else:
            found[f"{name}.py"] = path
    return found


def state_of(files: dict[str, Path]) -> dict[str, str]:
    """Of every file a text that changes whenever the file does."""
    stats = {name: path.stat() for name, path in files.items()}
    return {name: f"{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats.items()}


def digest_of(files: dict[str, Path]) -> str:
    """Changes whenever a file does."""
    parts = [f"{name}:{state}" for name, state in sorted(state_of(files).items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def pack(files: dict[str, Path], target: Path) -> None:
    """Write the archive that executors import from."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(files.items()):
            archive.write(path, name)


def _sources(root: Path) -> Iterator[Path]:
    found = (file for file in sorted(root.rglob("*.py")) if file.is_file())
    for count, file in enumerate(found):
        if count == _MOST_FILES:
            return
        yield file


def _is_the_users(path: Path) -> bool:
    text = str(path)
    return not text.startswith(_installed()) and "site-packages" not in text


@functools.cache
def _installed() -> tuple[str, ...]:
    found = sysconfig.get_paths()
    return (found["stdlib"], found["platlib"], found["purelib"], *_OUR_OWN)


_OUR_OWN = (str(Path(__file__).parent.parent),)
