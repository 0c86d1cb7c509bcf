"""Tells ranks that differ from ranks that noise makes look different."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.visited_curves import VisitedCurves

_SIGMAS = 1.0
_PLAIN, _PLAIN_PART = 1.4, 0.1


def equal_by_chance(visited: VisitedCurves, seconds: NDArray[np.float64]) -> bool:
    """Whether ranks that all take the same time could show these times.

    The farthest of n noisy times is sqrt(2 ln n) deviations off, one more is allowed. A rank's
    deviation is its own or that of all together, whichever is larger.

    Args:
        visited: The curves, with the uncertainty of the times.
        seconds: Seconds of each rank with the plan in force, shape `[size]`.
    """
    common = np.sqrt(np.mean(visited.spread**2))
    deviation = np.maximum(np.maximum(visited.spread, common), 1e-9)
    off = np.abs(seconds / np.median(seconds) - 1.0) / deviation
    return bool(off.max() < _SIGMAS + np.sqrt(2 * np.log(seconds.size + 1)))


def plainly_unequal(seconds: NDArray[np.float64]) -> bool:
    """Whether more than a tenth of the ranks is off by over 40 %, whatever the noise is.

    Args:
        seconds: Seconds of each rank with the plan in force, shape `[size]`.
    """
    ratio = seconds / np.median(seconds)
    return bool(np.mean((ratio > _PLAIN) | (ratio * _PLAIN < 1.0)) > _PLAIN_PART)
