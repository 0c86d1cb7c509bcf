"""One number for the steps of a round, as the running job takes it, for all ranks at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, lower_value


def typical_by_rank(
    step_seconds: NDArray[np.float64],
    measured: NDArray[np.bool_] | None = None,
    warmup: int = 2,
) -> tuple[NDArray[np.float64], ...]:
    """`balancing.measurement.typical_seconds` of each column, without a loop over ranks.

    Args:
        step_seconds: Busy seconds, finite, shape `[steps, ranks]`.
        measured: Which steps count at all, shape `[steps]`; None: all.
        warmup: Steps at the start to leave out; one step is left at least.

    Returns:
        Seconds a step, NaN if no step counts, the number of steps that they are the mean of, and
        their lower quartile and median; shape `[ranks]`.

    Example:
        >>> seconds = np.array([[9.0], [2.0], [1.0], [1.0], [1.1], [40.0], [0.9]])
        >>> typical_by_rank(seconds)
        (array([1.]), array([4.]), array([0.9]), array([1.]))
    """
    num_steps, num_ranks = step_seconds.shape
    counting = np.ones(num_steps, dtype=bool) if measured is None else measured.copy()
    if not counting.any():
        none = np.full(num_ranks, np.nan)
        return none, np.zeros(num_ranks), none, none
    settled = counting.copy()
    settled[: max(min(warmup, num_steps - 1), 0)] = False
    if not settled.any():
        settled = counting
    values = step_seconds if settled.all() else step_seconds[settled]
    means = values.mean(axis=0)
    counts = np.full(num_ranks, float(len(values)))
    # The median is at least the least, so only these columns can have a step to leave out.
    least = values.min(axis=0)
    suspects = np.flatnonzero(values.max(axis=0) > 3 * least)
    if suspects.size:
        columns = values[:, suspects]
        ordinary = columns <= 3 * np.median(columns, axis=0)
        counts[suspects] = ordinary.sum(axis=0)
        means[suspects] = np.where(ordinary, columns, 0.0).sum(axis=0) / counts[suspects]
    # What is left out is longer than these.
    lower = (lower_value(values, parts, counts) for parts in (QUARTILE, MEDIAN))
    return means, counts, *lower
