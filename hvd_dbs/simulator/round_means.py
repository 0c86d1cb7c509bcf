"""One number for the steps of a round, as the running job takes it, for all ranks at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def typical_by_rank(
    step_seconds: NDArray[np.float64], warmup: int = 2
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`balancing.measurement.typical_seconds` of each column, without a loop over ranks.

    Args:
        step_seconds: Busy seconds, finite, shape `[steps, ranks]`.
        warmup: Steps at the start to leave out, where there are more.

    Returns:
        Seconds a step, and the number of steps that they are the mean of; shape `[ranks]`.

    Example:
        >>> seconds = np.array([[9.0], [2.0], [1.0], [1.0], [1.1], [40.0], [0.9]])
        >>> typical_by_rank(seconds)
        (array([1.]), array([4.]))
    """
    settled = step_seconds[warmup:] if len(step_seconds) > warmup else step_seconds
    means = settled.mean(axis=0)
    counts = np.full(means.shape, float(len(settled)))
    # The median is at least the least, so only these columns can have a step to leave out.
    suspects = np.flatnonzero(settled.max(axis=0) > 3 * settled.min(axis=0))
    if suspects.size:
        columns = settled[:, suspects]
        ordinary = columns <= 3 * np.median(columns, axis=0)
        counts[suspects] = ordinary.sum(axis=0)
        means[suspects] = np.where(ordinary, columns, 0.0).sum(axis=0) / counts[suspects]
    return means, counts
