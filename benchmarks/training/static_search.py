"""The best static split, found by trying neighbours of a good one on the running job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.training import rank_curves
from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.plan import Plan

Batches = tuple[int, ...]
Trial = Callable[[Batches], tuple[float, NDArray[np.float64]]]
"""Trains with a plan; seconds a step, and busy seconds by rank."""


def moved(batch_sizes: Batches, busy_seconds: NDArray[np.float64], amount: int) -> Batches:
    """Some samples go from the rank that is busy longest to the one that is done first."""
    slow, fast = int(np.argmax(busy_seconds)), int(np.argmin(busy_seconds))
    amount = min(amount, batch_sizes[slow] - 1)
    changed = list(batch_sizes)
    changed[slow] -= amount
    changed[fast] += amount
    return tuple(changed)


def corrected(
    curves: NDArray[np.float64], batch_sizes: Batches, busy_seconds: NDArray[np.float64]
) -> Batches:
    """The best plan if each curve is off everywhere by as much as it is at its batch size."""
    foretold = curves[np.arange(len(batch_sizes)), list(batch_sizes)]
    return rank_curves.best_plan(curves * (busy_seconds / foretold)[:, np.newaxis])


def search(
    trial: Trial,
    curves: NDArray[np.float64],
    num_moves: int,
    seeds: Sequence[Batches] = (),
    finalists: int = 3,
) -> tuple[Batches, dict[Batches, list[float]]]:
    """Walks from the best of some plans to the best of its neighbours.

    The same on all ranks if `trial` returns the same on all ranks.

    Args:
        trial: Trains for some steps.
        curves: Seconds at each batch size, shape `[size, B + 1]`.
        num_moves: Plans to try after the first ones.
        seeds: Plans to begin with besides the best one by the curves.
        finalists: How many of the best are tried again, twice and in turns, before one wins.

    Returns:
        The best plan, and all seconds a step by plan.
    """
    seconds: dict[Batches, list[float]] = {}
    busy: dict[Batches, NDArray[np.float64]] = {}

    def attempt(plan: Batches) -> None:
        step_seconds, busy_seconds = trial(plan)
        seconds.setdefault(plan, []).append(step_seconds)
        busy[plan] = busy_seconds

    def ranking() -> list[Batches]:
        return sorted(seconds, key=lambda plan: float(np.median(seconds[plan])))

    for plan in dict.fromkeys([rank_curves.best_plan(curves), *seeds]):
        attempt(plan)
    for _ in range(num_moves):
        best = ranking()[0]
        fresh = [plan for plan in neighbours(best, busy[best], curves) if plan not in seconds]
        if not fresh:
            break
        attempt(fresh[0])
    last = ranking()[:finalists]
    for _ in range(2):
        for plan in last:
            attempt(plan)
    return min(last, key=lambda plan: float(np.median(seconds[plan]))), seconds


def neighbours(
    batch_sizes: Batches, busy_seconds: NDArray[np.float64], curves: NDArray[np.float64]
) -> list[Batches]:
    """Plans worth a trial beside a good one, the most promising first."""
    amount = max(1, sum(batch_sizes) // 48)
    plans = [
        corrected(curves, batch_sizes, busy_seconds),
        *(moved(batch_sizes, busy_seconds, n) for n in (amount, max(1, amount // 2), 2 * amount)),
    ]
    # Busy times lie a little, so the opposite of what they say is tried as well.
    plans.append(moved(batch_sizes, -busy_seconds, max(1, amount // 2)))
    return [plan for plan in dict.fromkeys(plans) if min(plan) >= 1 and plan != batch_sizes]


def compromises(calm: NDArray[np.float64], busy: NDArray[np.float64]) -> list[Batches]:
    """Plans for a cluster that changes between two states: even, the best of each, and of both."""
    size, most = calm.shape[0], calm.shape[1] - 1
    even = Plan.proportional(most, (1.0,) * size, Bounds.of(size, 1)).batch_sizes
    plans = [rank_curves.best_plan(curves) for curves in (calm, busy, (calm + busy) / 2)]
    return list(dict.fromkeys([even, *plans]))
