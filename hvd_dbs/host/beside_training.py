"""When other threads of a rank begin to work: not while its training prepares a step."""

from __future__ import annotations

import math
import time

_PART, _MOST_SECONDS = 0.05, 0.005
"""This part of a step, and so many seconds at most: in them the training's thread, in Python,
begins the next step. A thread that computes in Python then would keep the global interpreter lock
from it for up to 5 ms at a time (`sys.getswitchinterval`)."""


def begins_after(step_seconds: float) -> float:
    """Seconds from the end of a step until work beside the training begins.

    Args:
        step_seconds: What a step takes; 0 where it is unknown.

    Example:
        >>> begins_after(0.02), begins_after(3.0)
        (0.001, 0.005)
    """
    return min(_PART * step_seconds, _MOST_SECONDS)


class BesideTraining:
    """Keeps a thread that waits for the end of each step from working while the next one begins."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Training waits for this work until its next step is over."""
        self._over_at, self._begins_after = math.nan, 0.0

    def end_step(self) -> None:
        """A step is over; called by the training's thread."""
        now = time.monotonic()
        self._begins_after = begins_after(now - self._over_at) if self._over_at < now else 0.0
        self._over_at = now

    def wait(self) -> None:
        """Waits until work may begin; called by the other thread once it knows of that end."""
        time.sleep(self._begins_after)
