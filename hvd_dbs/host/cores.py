"""What of its machine this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path


def num_cores() -> int:
    """Cores that this process may use, as TensorFlow counts them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_usable_cores() -> float:
    """Cores' worth of time that this process may use: `num_cores`, or less in a container."""
    return min(num_cores(), cpu_quota())


def cpu_quota(root: Path = Path("/")) -> float:
    """Cores' worth of time that this process's control groups leave it; infinity without a limit.

    Args:
        root: Where `proc` and `sys` are found. What cannot be read there limits nothing.
    """
    return min((_quota(group) for group in cpu_groups(root)), default=math.inf)


def cpu_groups(root: Path = Path("/")) -> list[Path]:
    """Folders where this process's control groups for processors may be, and those around them.

    Each once, though it may have several names.

    Args:
        root: Where `proc` and `sys` are found.
    """
    groups: dict[Path, None] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, *rest = line.split(":", 2)
        controllers, path = rest if len(rest) == 2 else ("", "")
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 1 has a folder for each controller; 2 has one in all, maybe beside them.
        for folder in (controllers, "cpu") if controllers else ("", "unified"):
            top, group = root / "sys/fs/cgroup" / folder, Path(path.lstrip("/"))
            # A container sees its own group as the top, whatever the path says.
            groups |= dict.fromkeys((top / one).resolve() for one in (group, *group.parents))
    return list(groups)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _quota(group: Path) -> float:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        # No limit is the word "max" in version 2, a negative number in version 1.
        with contextlib.suppress(OSError, ValueError):
            texts = [(group / name).read_text() for name in names]
            quota, period = (int(word) for word in " ".join(texts).split())
            if quota > 0 and period > 0:
                return quota / period
    return math.inf
