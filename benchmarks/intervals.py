"""Intervals of means."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_T_FROM = {16: 2.12, 18: 2.10, 20: 2.09, 25: 2.06, 30: 2.04, 40: 2.02, 60: 2.00, 120: 1.98}


def mean_and_half(
    values: ArrayLike, axis: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means along an axis, and half of the 95 % intervals around them, by Student's t.

    A half is infinite for a single value.
    """
    values = np.asarray(values, dtype=np.float64)
    number, mean = values.shape[axis], values.mean(axis=axis)
    if number < 2:
        return mean, np.full_like(mean, np.inf)
    deviation = values.std(axis=axis, ddof=1)
    return mean, t_quantile(number - 1) * deviation / number**0.5


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, at least as large as the exact one."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    return next(t for start, t in reversed(_T_FROM.items()) if start <= degrees)
