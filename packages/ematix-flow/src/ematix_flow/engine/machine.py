"""What this machine offers: cores and memory, as limited by the container we run in."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_FALLBACK_MEMORY = 4 << 30


def cores() -> int:
    """Cores this process may use, at least one."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = _cpu_quota(_CGROUP)
    return max(1, allowed if quota is None else min(allowed, quota))


def memory_bytes() -> int:
    """Memory this process may use: what is installed, or less in a container."""
    limit = _memory_limit(_CGROUP)
    installed = _installed_memory()
    return installed if limit is None else min(installed, limit)


def _installed_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _FALLBACK_MEMORY


def _memory_limit(root: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(root / name)
        if text is not None and text.isdigit():
            return int(text)
    return None


def _cpu_quota(root: Path) -> int | None:
    text = _read(root / "cpu.max")
    if text is None:
        quota_text = _read(root / "cpu" / "cpu.cfs_quota_us")
        period_text = _read(root / "cpu" / "cpu.cfs_period_us")
        text = f"{quota_text} {period_text}"
    quota, _, period = text.partition(" ")
    if not (quota.isdigit() and period.isdigit()):
        return None
    return max(1, -(-int(quota) // int(period)))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
