"""Tells ranks that differ from ranks that noise makes look different."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.visited_curves import VisitedCurves

_PLAIN_SIGMAS, _PLAIN_LEAST, _PLAIN_MOST, _PLAIN_PART = 13.0, 0.25, 0.4, 0.1


def farthest_of(size: int) -> float:
    """How many deviations the farthest of so many noisy times is off."""
    return float(np.sqrt(2 * np.log(size + 1)))


def deviations(visited: VisitedCurves) -> NDArray[np.float64]:
    """Relative deviation of each rank's time: its own or all ranks', whichever is larger."""
    common = np.sqrt(np.mean(visited.spread**2))
    return np.asarray(np.maximum(np.maximum(visited.spread, common), 1e-9))


def equal_by_chance(
    visited: VisitedCurves, relative: NDArray[np.float64], more: float = 1.0
) -> bool:
    """Whether ranks that all take the same time could show these times.

    The farthest of n noisy times is sqrt(2 ln n) deviations off, some more are allowed. A rank
    whose last time contradicts its curve says nothing until the next one.

    Args:
        visited: The curves, with the uncertainty of the times.
        relative: Times of the ranks with the plan in force over their median, shape `[size]`.
        more: Deviations allowed beyond the farthest.
    """
    off = np.where(visited.unrest == 1, 0.0, np.abs(relative - 1.0) / deviations(visited))
    return bool(off.max() < more + farthest_of(relative.size))


def plainly_unequal(visited: VisitedCurves, relative: NDArray[np.float64]) -> bool:
    """Whether more than a tenth of the ranks is far off even if noise is three times its estimate.

    Far is four such deviations, but at least 25 % and at most 40 %.

    Args:
        visited: The curves, with the uncertainty of the times.
        relative: Times of the ranks with the plan in force over their median, shape `[size]`.
    """
    far = 1.0 + min(max(_PLAIN_SIGMAS * visited.typical_spread, _PLAIN_LEAST), _PLAIN_MOST)
    return bool(np.mean((relative > far) | (relative * far < 1.0)) > _PLAIN_PART)
