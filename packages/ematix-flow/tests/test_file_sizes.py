"""Modules stay small enough to be read in one sitting."""

from __future__ import annotations

from pathlib import Path

import ematix_flow

LIMIT = 600
SOURCE = Path(ematix_flow.__file__).parent


def test_no_module_is_longer_than_the_limit() -> None:
    sizes = {
        str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert sizes
    assert {name: size for name, size in sizes.items() if size > LIMIT} == {}
