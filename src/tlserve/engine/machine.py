"""What this process may really use: CPUs and memory, as the container's limits say and not as the machine would.

A pod with a quota of two CPUs on a node of sixty-four that starts sixty-four threads is slower than with one.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """Whole CPUs that the affinity mask and the cgroup's quota leave, at least one."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return max(1, min(affinity, math.floor(quota + 0.01)) if quota is not None else affinity)


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory that the cgroup's limit and the machine leave, used or not."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        _number(cgroup / "memory.max"),  # version 2
        _number(cgroup / "memory" / "memory.limit_in_bytes"),  # version 1
    ]
    return min([machine, *(limit for limit in limits if limit is not None)])


def _cpu_quota(cgroup: Path) -> float | None:
    """CPUs as a fraction, from version 2's one file or version 1's two; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return _cpu_quota_v1(cgroup)
    return None if quota == "max" else int(quota) / int(period)


def _cpu_quota_v1(cgroup: Path) -> float | None:
    quota = _number(cgroup / "cpu" / "cpu.cfs_quota_us")
    period = _number(cgroup / "cpu" / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
