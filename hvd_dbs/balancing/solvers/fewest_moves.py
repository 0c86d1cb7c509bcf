"""Of a better plan, only what is surely better: ranks that may be fast enough stay as they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves, Grid, TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.surplus import give_back


def with_fewest_moves(
    problem: Problem, curves: TimeCurves, best: Plan, at_least: NDArray[np.float64]
) -> Plan:
    """The plan in force, in which only ranks that are surely late get what the best plan says.

    The best plan of thousands of noisy ranks moves nearly all of them, most by chance; those that
    only look fast get more samples and are the next to be late. Here, ranks that finish by the
    best plan's deadline, or might if noise has made them look slow, keep their samples. What the
    late ranks give goes to those that have the most time left, as evenly as the deadline allows.

    A rank that gets more is taken to need more time in proportion, whatever its curve says beyond
    the batch size in use: where paces drift, points there are of an old pace, and of thousands of
    curves some look flat. Those few would get nearly all, and be late.

    Args:
        problem: The sum, the bounds, the plan in force.
        curves: Seconds by rank.
        best: The plan with the shortest step.
        at_least: Seconds with the plan in force, less what noise may have added, shape `[size]`.

    Returns:
        The plan; `best` where what is given finds no takers in time.

    Example:
        >>> from hvd_dbs.balancing.bounds import Bounds
        >>> curves = AffineCurves(fixed=np.zeros(4), per_sample=np.array([1.0, 1.0, 1.05, 1.9]))
        >>> problem = Problem(120, Bounds.of(4), Plan((30, 30, 34, 26)))
        >>> best = Plan((35, 35, 32, 18))
        >>> at_least = curves.seconds(problem.current.samples) / 1.1
        >>> with_fewest_moves(problem, curves, best, at_least).batch_sizes
        (34, 34, 34, 18)
    """
    unit = problem.bounds.multiple_of
    current, wanted = problem.current.samples, best.samples
    deadline = float(np.max(curves.seconds(wanted)))
    late = at_least > deadline
    kept = np.where(late, wanted, current)
    takers = np.flatnonzero(~late & (wanted > current))
    low, high = (samples[takers].astype(np.int64) // unit for samples in (current, wanted))
    total = (problem.global_batch_size - int(kept.sum())) // unit + int(low.sum())
    pace = curves.seconds(current)[takers] / np.maximum(current[takers], unit)
    # To the nearest unit: among equal ranks with few samples, one more is what there is to give.
    caps = np.clip(np.rint(deadline / pace / unit), low, high).astype(np.int64)
    found = None
    if low.sum() <= total <= caps.sum():
        in_proportion = AffineCurves(fixed=np.zeros(takers.size), per_sample=pace)
        found = give_back(in_proportion, Grid(low, caps, unit), caps, total, np.inf)
    if found is None:
        return best
    kept[takers] = found * unit
    return Plan.of(kept.astype(np.int64))
