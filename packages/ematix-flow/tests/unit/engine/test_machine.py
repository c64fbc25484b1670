"""Cores and memory, as containers limit them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ematix_flow.engine import machine


def test_limits_of_a_container_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.memory_bytes() == 512 << 20
    assert machine.cores() == 1


def test_limits_of_the_older_kind_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{1 << 30}\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.memory_bytes() == 1 << 30
    assert machine.cores() == min(2, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("limit", ["max", "", "-1"])
def test_no_limit_means_the_whole_machine(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "cpu.max").write_text(f"{limit} 100000")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory_bytes() == installed
    assert machine.cores() == len(os.sched_getaffinity(0))
