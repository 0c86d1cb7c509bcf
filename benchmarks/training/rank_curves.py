"""Measured time curves, each rank at batch sizes of its own, and what they allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.ideal import ideal_step_seconds
from benchmarks.table_curves import TableCurves
from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.equal_finish import equal_finish

_FACTORS = (0.4, 0.7, 1.0, 1.3, 1.8)


def points_around(batch_sizes: Sequence[float]) -> NDArray[np.int64]:
    """Where to measure: around each rank's own batch size, so that all take about as long.

    Returns:
        Increasing batch sizes, shape `[size, 5]`.
    """
    points: NDArray[np.int64] = np.rint(np.outer(np.maximum(batch_sizes, 1.0), _FACTORS)).astype(
        np.int64
    )
    points[:, 0] = np.maximum(points[:, 0], 1)
    for i in range(1, points.shape[1]):
        points[:, i] = np.maximum(points[:, i], points[:, i - 1] + 1)
    return points


def table(
    points: NDArray[np.int64], seconds: NDArray[np.float64], most: int
) -> NDArray[np.float64]:
    """Curves at each batch size: straight lines through the points, and beyond the outer ones.

    Args:
        points: Batch sizes, increasing, shape `[size, k]`.
        seconds: Seconds there, shape `[size, k]`.
        most: The largest batch size.

    Returns:
        Seconds at 0 to `most` samples, never falling, shape `[size, most + 1]`; NaN at 0.
    """
    samples = np.arange(most + 1, dtype=np.float64)
    rows = []
    for x, measured in zip(points.astype(np.float64), seconds, strict=True):
        y = np.maximum.accumulate(measured)
        first, last = (max(float(y[j] - y[i]) / (x[j] - x[i]), 1e-9) for i, j in ((0, 1), (-2, -1)))
        row = np.interp(samples, x, y)
        row = np.where(samples < x[0], np.maximum(y[0] - first * (x[0] - samples), 1e-6), row)
        row = np.where(samples > x[-1], y[-1] + last * (samples - x[-1]), row)
        rows.append(row)
    curves = np.array(rows)
    curves[:, 0] = np.nan
    return curves


def ideal_seconds(curves: NDArray[np.float64]) -> float:
    """The shortest step that these curves allow; the global batch is the last column."""
    most = curves.shape[1] - 1
    return ideal_step_seconds(range(1, most + 1), curves[:, 1:], most)


def plan_seconds(curves: NDArray[np.float64], batch_sizes: Sequence[int]) -> float:
    """The step of a plan by these curves."""
    return float(np.max(curves[np.arange(len(batch_sizes)), list(batch_sizes)]))


def best_plan(curves: NDArray[np.float64]) -> tuple[int, ...]:
    """The plan that all ranks finish together by these curves."""
    size, most = curves.shape[0], curves.shape[1] - 1
    even = Plan.proportional(most, (1.0,) * size, Bounds.of(size, 1))
    problem = Problem(most, Bounds.of(size, 1), even)
    return equal_finish(problem, TableCurves(curves)).batch_sizes
