"""Every code block of every page is executed, top to bottom, in a folder of its own.

``python`` runs, in one namespace per page; a block with a ``title`` is written to that file
instead. ``bash`` runs line by line: ``flow`` in this process, the rest in a shell. A block
``text title="output"`` is what the block before it prints, ``title="error"`` how it fails; ``…``
stands for anything. Plain ``text`` and ``mermaid`` are for looking at.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ematix_flow.cli.main import main as flow
from ematix_flow.observe.alerts import clear_alerters

ROOT = Path(__file__).resolve().parents[4]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "packages/*/README.md")
    for path in ROOT.glob(pattern)
    if "demo-data" not in path.parts
)
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: +title=\"(?P<title>[^\"]+)\")?[^\n`]*\n"
    r"(?P<text>.*?)^(?P=indent)``` *$",
    re.MULTILINE | re.DOTALL,
)
_SHELL_ONLY = re.compile(r"[|<>$;*&]")
_TOOK = re.compile(r"\b\d+\.\d s\b")
_PAGE_MODULE = "documentation_page"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(page, line, match["language"], match["title"] or "", text))
    assert len(found) * 2 == len(re.findall(r"^ *```", source, re.MULTILINE)), page
    return found


@dataclass
class Outcome:
    """What the last executed block printed, and how it failed if it did."""

    block: Block | None = None
    output: str = ""
    error: str | None = None

    def settle(self) -> None:
        """A failure that no block announces is a failure of the page."""
        assert self.error is None, f"{self.block} failed: {self.error}"


@dataclass
class Reader:
    """Does what a page says."""

    namespace: dict[str, object]
    outcome: Outcome = field(default_factory=Outcome)

    def follow(self, page: Path) -> None:
        for block in blocks_of(page):
            if block.language == "text" and block.title in ("output", "error"):
                self._compare(block)
                continue
            if block.language in ("text", "mermaid") and not block.title:
                continue
            self.outcome.settle()
            if block.language == "bash":
                self.outcome = _shell(block)
            elif block.title:
                path = Path(block.title)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                self.outcome = self._python(block)
            else:
                pytest.fail(f"{block}: a block {block.language!r} needs a title to be written to")
        self.outcome.settle()

    def _python(self, block: Block) -> Outcome:
        # Padded, so that a trace shows the page's own line.
        code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, self.namespace)  # noqa: S102 - running the page is the test
        except Exception as error:  # noqa: BLE001 - a page may show any failure
            return Outcome(block, printed.getvalue(), f"{type(error).__name__}: {error}")
        return Outcome(block, printed.getvalue())

    def _compare(self, block: Block) -> None:
        if block.title == "error":
            assert self.outcome.error is not None, f"{block}: the block before it does not fail"
            actual, self.outcome.error = self.outcome.error, None
        else:
            self.outcome.settle()
            actual = self.outcome.output
        assert matches(block.text, actual), (
            f"{block} differs from what {self.outcome.block} gives:\n{actual}"
        )


def matches(expected: str, actual: str) -> bool:
    """Whether a text is the expected one, durations aside, where ``…`` stands for anything."""
    lines = [line.rstrip() for line in _TOOK.sub("0.0 s", actual).strip("\n").splitlines()]
    wanted = [line.rstrip() for line in _TOOK.sub("0.0 s", expected).strip("\n").splitlines()]
    pattern = r"\n".join(".*".join(map(re.escape, line.split("…"))) for line in wanted)
    # A line with nothing but … may stand for several.
    pattern = re.sub(r"(^|\\n)\.\*(?=$|\\n)", r"\1(?s:.*?)", pattern)
    return re.fullmatch(pattern, "\n".join(lines)) is not None


def _shell(block: Block) -> Outcome:
    outcome = Outcome(block)
    script = re.sub(r"\\\n\s*", "", block.text)
    for line in script.splitlines():
        command = line.partition(" #")[0].strip()
        if not command or command.startswith("#"):
            continue
        for part in command.split(" && "):
            outcome.settle()
            _one_command(part, outcome)
    return outcome


def _one_command(command: str, outcome: Outcome) -> None:
    program, _, rest = command.partition(" ")
    if program == "cd":
        os.chdir(rest)
    elif program == "export":
        name, _, value = rest.partition("=")
        os.environ[name] = shlex.split(value)[0]
    elif program in ("make", "pip", "git", "source", "brew", "python3"):
        _check_set_up(command)
    elif program == "flow" and not _SHELL_ONLY.search(command):
        printed, complained = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            code = flow(shlex.split(rest))
        _record(outcome, command, code, printed.getvalue(), complained.getvalue())
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
            timeout=120,
            check=False,
        )
        _record(outcome, command, ran.returncode, ran.stdout, ran.stderr)


def _record(outcome: Outcome, command: str, code: int, printed: str, complained: str) -> None:
    outcome.output += printed
    if code or "flow: error:" in complained:
        outcome.error = complained or f"{command!r} ended with exit code {code}"


def _check_set_up(command: str) -> None:
    """Setting a machine up is tested elsewhere (packaging, CI); here only the spelling is."""
    words = shlex.split(command)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        asked = [word for word in words[1:] if "=" not in word]
        assert asked, command
        assert set(asked) <= set(targets), command
    elif words[0] == "pip":
        assert words[1] == "install", command
        assert re.fullmatch(r"ematix-flow(\[[a-z0-9,-]+\])?(==[0-9.]+)?", words[-1]), command
    else:
        assert words[:2] in (
            ["git", "clone"],
            ["python3", "-m"],
            ["source", ".venv/bin/activate"],
        ), command


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader at an empty desk; what a page leaves in this process is cleared away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    environment, modules = dict(os.environ), dict(sys.modules)
    page = types.ModuleType(_PAGE_MODULE)
    sys.modules[_PAGE_MODULE] = page
    try:
        yield Reader(vars(page))
    finally:
        clear_alerters()
        for name in set(sys.modules) - set(modules):
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name == _PAGE_MODULE or file.startswith(str(tmp_path)):
                del sys.modules[name]
        os.environ.clear()
        os.environ.update(environment)


def _needs_postgres(page: Path) -> bool:
    return "WAREHOUSE_URL" in page.read_text(encoding="utf-8") and page.name == "postgres.md"


def _named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


@pytest.mark.parametrize("page", _named([p for p in PAGES if not _needs_postgres(p)]))
@pytest.mark.usefixtures("engine")
def test_page(page: Path, reader: Reader) -> None:
    reader.follow(page)


@pytest.mark.parametrize("page", _named([p for p in PAGES if _needs_postgres(p)]))
@pytest.mark.usefixtures("engine")
def test_page_with_postgres(page: Path, reader: Reader, postgres) -> None:
    os.environ["WAREHOUSE_URL"] = postgres.create_database()
    reader.follow(page)


def test_no_page_is_forgotten() -> None:
    assert {"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "index.md"} <= {
        page.name for page in PAGES
    }
    assert any(_needs_postgres(page) for page in PAGES)


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\nb\n", "a\nc", False),
        ("ran in 3.0 s", "ran in 12.5 s", True),
        ("ran in … s", "ran in 1.2 s", True),
        ("ran in … s", "ran in 1.2 s\nmore", False),
        ("first\n…\nlast", "first\nx\ny\nlast", True),
        ("first\n…\nlast", "first\nx\ny\nlast\nafter", False),
    ],
)
def test_the_reader_can_tell_outputs_apart(expected: str, actual: str, same: bool) -> None:
    assert matches(expected, actual) is same


def test_a_failing_block_fails_its_page(tmp_path: Path, reader: Reader) -> None:
    page = ROOT / "README.md"
    reader.outcome = reader._python(Block(page, 1, "python", "", "raise ValueError('no')"))
    with pytest.raises(AssertionError, match="ValueError: no"):
        reader.outcome.settle()
    reader.outcome = _shell(Block(page, 1, "bash", "", f"ls {tmp_path}/absent"))
    with pytest.raises(AssertionError, match="absent"):
        reader.outcome.settle()
