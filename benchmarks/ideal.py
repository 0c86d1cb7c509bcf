"""What a cluster could do at best: equal finish on the ranks' own time curves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.collective import Collective


def measure_curve(
    collective: Collective,
    step: Callable[[int], None],
    batch_sizes: Sequence[int],
    seconds: float,
    warmup_steps: int = 2,
) -> NDArray[np.float64]:
    """Seconds of one step against its batch size, on every rank, all ranks computing at once.

    For each batch size the ranks start together and all keep stepping, without talking to each
    other, until `seconds` are over and they have stepped three times.

    Args:
        collective: The job.
        step: Runs one training step of the given batch size without communication.
        batch_sizes: Where to measure, increasing.
        seconds: Length of each measurement.
        warmup_steps: Steps before each measurement that do not count.

    Returns:
        Seconds a step by rank and batch size, shape `[size, len(batch_sizes)]`.
    """
    curve = np.zeros(len(batch_sizes))
    for i, batch_size in enumerate(batch_sizes):
        for _ in range(warmup_steps):
            step(batch_size)
        collective.allgather(np.zeros(1))  # All ranks start together.
        start, num_steps = time.monotonic(), 0
        while time.monotonic() - start < seconds or num_steps < 3:
            step(batch_size)
            num_steps += 1
        curve[i] = (time.monotonic() - start) / num_steps
    return collective.allgather(curve)


def ideal_step_seconds(
    batch_sizes: Sequence[int], curves: NDArray[np.float64], global_batch_size: int
) -> float:
    """The shortest step in which ranks with these curves process a global batch.

    Between measured points a curve is a straight line, beyond the last the line through the
    last two, below the first it is the first point's time.

    Args:
        batch_sizes: Where the curves were measured, increasing.
        curves: Seconds by rank and batch size, shape `[size, len(batch_sizes)]`.
        global_batch_size: Samples to share out.

    Returns:
        Seconds; the smallest T with sum over ranks of max{b: t_i(b) <= T} >= B.
    """
    xs = np.asarray(batch_sizes, dtype=np.float64)
    rising = np.maximum.accumulate(curves, axis=1)
    slopes = np.maximum((rising[:, -1] - rising[:, -2]) / (xs[-1] - xs[-2]), 1e-9)

    def capacity(seconds: float) -> float:
        inside = [np.interp(seconds, row, xs, left=0.0) for row in rising]
        beyond = np.maximum(seconds - rising[:, -1], 0) / slopes
        return float(np.sum(inside) + np.sum(beyond))

    low, high = 0.0, float(rising[:, -1].max() + global_batch_size * slopes.min())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if capacity(middle) >= global_batch_size else (middle, high)
    return high
