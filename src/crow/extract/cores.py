"""How many processor cores this process was granted, which in containers is fewer than the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def granted_cores(cgroup: Path = CGROUP) -> int:
    """The cores this process may run on, within the time quota of its container and OMP_NUM_THREADS; at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, math.ceil(min(allowed, _quota(cgroup), int(told) if told.isdecimal() else math.inf)))


def _quota(cgroup: Path) -> float:
    """Cores' worth of time that the container may use: cgroup version 2, else version 1, else without limit."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    try:
        return int(limit) / int(period) if int(limit) > 0 else math.inf
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return math.inf
