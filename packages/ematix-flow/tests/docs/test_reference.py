"""The generated pages say what the code says, and leave out nothing that it has."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "packages" / "ematix-flow" / "src" / "ematix_flow"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "scripts" / "generate_reference.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_page_is_stale(generator: ModuleType) -> None:
    stale = [str(path.relative_to(ROOT)) for path in generator.stale()]
    assert not stale, "run: .venv/bin/python scripts/generate_reference.py"


def test_every_setting_in_the_code_is_documented(generator: ModuleType) -> None:
    page = generator.settings()
    used = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        used |= {f"EMATIX_FLOW_{name}" for name in re.findall(r'\bsetting\("([A-Z_]+)"\)', text)}
        used |= set(re.findall(r'"(EMATIX_FLOW_[A-Z_]*[A-Z])"', text))
    assert len(used) >= 4
    for name in used:
        assert f"`{name}`" in page, f"{name} is not in scripts/reference_texts.py"


def test_every_normalizer_is_documented() -> None:
    from ematix_flow import normalize

    page = (ROOT / "docs" / "reference" / "normalizers.md").read_text(encoding="utf-8")
    names = [
        name
        for name in normalize.__all__
        if name.islower() and not name.endswith("_chain") and name != "is_normalizer"
    ]
    assert len(names) > 20
    missing = [name for name in names if not re.search(rf"\b{name}\(", page)]
    assert not missing


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet: it would silence the warnings that --strict counts.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.html").exists()


def test_what_is_published_names_no_machine() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(?:home|root|tmp|Users)/|/pytest-", text), page


def test_links_between_the_pages_of_the_repository_lead_somewhere() -> None:
    checked = 0
    for page in (*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
            checked += 1
    assert checked > 8


def test_architecture_names_every_layer_and_only_places_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    layers = text.partition("## Layers")[2].partition("## Where is it?")[0]
    modules = {
        p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    for module in modules - {"__init__"}:
        assert f"`{module}`" in layers, f"ARCHITECTURE.md does not place {module}"
    for place in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        assert (SOURCE / place).exists(), f"ARCHITECTURE.md names {place}"
