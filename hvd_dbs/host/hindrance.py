"""What hinders this process: its container's quota of processor time, and page faults."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from hvd_dbs.host.cores import cpu_groups

_UNITS = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Seconds by what versions 2 and 1 of control groups call them in `cpu.stat`."""


@dataclass(frozen=True)
class Hindrance:
    """What hindered a process for a time; NaN: unknown.

    Attributes:
        throttled_share: Part of the time in which a control group was throttled, since its quota
            of processor time was used up, 0 to 1. Where threads of several processors are
            throttled at once, their times add up, to 1 at most.
        page_faults: Page faults of the process, with and without reading from a disk.
    """

    throttled_share: float = math.nan
    page_faults: float = math.nan


class HindranceMeter:
    """Reads counters of the kernel: some 20 microseconds for each control group around the process.

    Args:
        root: Where `proc` and `sys` are found.

    Example:
        >>> meter = HindranceMeter()
        >>> meter.take().page_faults >= 0
        True
    """

    def __init__(self, root: Path = Path("/")) -> None:
        files = (group / "cpu.stat" for group in cpu_groups(root))
        self._files = [file for file in files if math.isfinite(_throttled_seconds(file))]
        self._before = self._counters()

    def take(self) -> Hindrance:
        """What there was since the last call."""
        before, self._before = self._before, self._counters()
        seconds, page_faults, *throttled = (
            now - then for now, then in zip(self._before, before, strict=True)
        )
        # A group and the one around it may be throttled for the same reason.
        longest = max((one for one in throttled if math.isfinite(one)), default=math.nan)
        share = longest / seconds if seconds > 0 else math.nan
        return Hindrance(min(max(share, 0.0), 1.0) if math.isfinite(share) else share, page_faults)

    def _counters(self) -> list[float]:
        use = resource.getrusage(resource.RUSAGE_SELF)
        throttled = [_throttled_seconds(file) for file in self._files]
        return [time.monotonic(), float(use.ru_minflt + use.ru_majflt), *throttled]


def _throttled_seconds(file: Path) -> float:
    """How long a control group has been throttled so far; NaN where its file does not say."""
    try:
        words = [line.split() for line in file.read_text().splitlines()]
        return next(int(row[1]) * _UNITS[row[0]] for row in words if row[0] in _UNITS)
    except (OSError, ValueError, LookupError, StopIteration):
        return math.nan
