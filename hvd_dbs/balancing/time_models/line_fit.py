"""Online fit of t(b) = a + c b, for many ranks at once: sums in, a line out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves

NUM_SUMS = 5
"""Weights, and weighted b, t, b*b and b*t."""

_PRIOR = 0.005
"""What the guess "in proportion to b" counts for, in rounds at twice the usual batch size."""


def no_sums(num_rows: int) -> NDArray[np.float64]:
    """The sums before the first point, shape `[rows, 5]`."""
    return np.zeros((num_rows, NUM_SUMS))


def add_point(
    sums: NDArray[np.float64],
    batch_sizes: NDArray[np.float64],
    seconds: NDArray[np.float64],
    weights: NDArray[np.float64],
    keep: float,
) -> NDArray[np.float64]:
    """The sums with one more point by row; what was there counts `keep` times as much.

    Args:
        sums: Shape `[rows, 5]`.
        batch_sizes: Shape `[rows]`.
        seconds: Shape `[rows]`.
        weights: Shape `[rows]`; a row with weight 0 stays as it is.
        keep: From 0 to 1.
    """
    new = weights > 0
    b, t = np.where(new, batch_sizes, 0.0), np.where(new, seconds, 0.0)
    point = np.column_stack([np.ones(len(b)), b, t, b * b, b * t]) * weights[:, np.newaxis]
    return np.where(new[:, np.newaxis], keep * sums + point, sums)


def line(sums: NDArray[np.float64]) -> AffineCurves:
    """The least-squares lines, drawn towards the origin as far as the points leave it open.

    One batch size alone cannot tell a from c: then the line goes through the origin. The line
    never falls and never has a negative time at b = 0. NaN where there is no point.

    Args:
        sums: Shape `[rows, 5]`.
    """
    weight = np.where(sums[:, 0] > 0, sums[:, 0], np.nan)
    mean_b, mean_t = sums[:, 1] / weight, sums[:, 2] / weight
    spread = np.maximum(sums[:, 3] - weight * mean_b**2, 0.0)
    common = sums[:, 4] - weight * mean_b * mean_t
    steepest = mean_t / mean_b
    prior = _PRIOR * mean_b**2
    slope = (common + prior * steepest) / (spread + prior)
    slope = np.clip(slope, 0.01 * steepest, steepest)
    return AffineCurves(fixed=np.maximum(mean_t - slope * mean_b, 0.0), per_sample=slope)
