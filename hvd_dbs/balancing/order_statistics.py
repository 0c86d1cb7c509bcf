"""Where a few steps lie once they are sorted, and where noise alone would put them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUARTILE, MEDIAN = 4, 2
"""Parts of the steps, of which one is not longer than the lower quartile, or the median."""

_QUARTILE_VARIANCE = 1.86
"""p (1 - p) / phi(z_p)^2 of the normal distribution, for p = 1/4."""


def lower_value(
    steps: NDArray[np.float64], parts: int, counts: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The step that is at (n - 1) // parts of n, shape `[ranks]`; NaN where none counts.

    Args:
        steps: At least one, NaN for those that do not count, shape `[steps, ranks]`.
        parts: `QUARTILE` or `MEDIAN`; of two steps, both are the shorter one.
        counts: How many of the shortest count, shape `[ranks]`; None: all but NaN.

    Example:
        >>> steps = np.array([[5.0], [1.0], [3.0], [2.0], [4.0], [np.nan]])
        >>> lower_value(steps, QUARTILE).tolist(), lower_value(steps, MEDIAN).tolist()
        ([2.0], [3.0])
    """
    number = np.isfinite(steps).sum(axis=0) if counts is None else counts
    place = (np.maximum(number - 1, 0) // parts).astype(np.intp)
    return np.asarray(np.sort(steps, axis=0)[place, np.arange(steps.shape[1])])


def below_mean(number: NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    """Expected distance of `lower_value` below the mean, in deviations, for normal numbers.

    Blom's formula for order statistics, with Tukey's lambda distribution (0.14) for the quantile
    of the normal one: within 0.02 of it, and all ranks at once.

    Args:
        number: From 1 on, any shape.
        parts: `QUARTILE` or `MEDIAN`.

    References:
        Blom, "Statistical Estimates and Transformed Beta-Variables", 1958.

    Example:
        >>> below_mean(np.array([1.0, 2.0, 20.0]), QUARTILE).round(2).tolist()
        [0.0, 0.59, 0.74]
    """
    part = ((number - 1) // parts + 0.625) / (number + 0.25)
    return np.asarray(4.91 * ((1 - part) ** 0.14 - part**0.14))


def quartile_variance(number: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of the lower quartile, in variances of one number; right for many, and for one."""
    return np.minimum(_QUARTILE_VARIANCE / number, 1.0)
