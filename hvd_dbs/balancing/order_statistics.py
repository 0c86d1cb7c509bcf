"""What is expected of the shortest of some steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shortest_below_mean(number: NDArray[np.float64]) -> NDArray[np.float64]:
    """Deviations by which the shortest of so many normal numbers is expected below their mean.

    Blom's formula for order statistics, with Tukey's lambda distribution (0.14) for the quantile
    of the normal one: within 0.02 of it up to 200 numbers, and all ranks at once.

    Args:
        number: From 1 on, any shape.

    References:
        Blom, "Statistical Estimates and Transformed Beta-Variables", 1958.

    Example:
        >>> shortest_below_mean(np.array([1.0, 2.0, 20.0])).round(2).tolist()
        [0.0, 0.59, 1.87]
    """
    part = (number - 0.375) / (number + 0.25)
    return np.asarray(4.91 * (part**0.14 - (1 - part) ** 0.14))
