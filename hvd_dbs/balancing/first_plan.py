"""The first plan of a training, from what others have measured of the same kinds of device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.equal_finish import equal_finish
from hvd_dbs.balancing.speed_points import Speeds, curves_through

_LEAST_GAIN = 0.02
"""A plan that promises less than this part of a step is no reason to start uneven."""


def first_plan(problem: Problem, speeds: Speeds, classes: Sequence[str]) -> Plan | None:
    """The plan by which all ranks finish together, if they are as fast as was measured.

    A class that was not measured counts as the one in the middle.

    Args:
        problem: The sum, the bounds, the plan that would be the first one.
        speeds: What was measured.
        classes: Each rank's class, by rank.

    Returns:
        The plan; None where no rank's class was measured, or nothing is to be gained.

    Example:
        >>> from hvd_dbs.balancing import Bounds
        >>> from hvd_dbs.balancing.speed_points import SpeedPoint
        >>> speeds = {"A100": [SpeedPoint(64, 0.1)], "T4": [SpeedPoint(64, 0.3)]}
        >>> problem = Problem(128, Bounds.of(2, minimum=1), Plan((64, 64)))
        >>> first_plan(problem, speeds, ["T4", "A100"]).batch_sizes
        (28, 100)
    """
    names = [name for name in dict.fromkeys(classes) if speeds.get(name)]
    if not names:
        return None
    curves = curves_through([speeds[name] for name in names])
    index = {name: i for i, name in enumerate(names)}
    known = [index[name] for name in classes if name in index]
    share = problem.global_batch_size / len(classes)
    seconds = curves.seconds(np.full(len(names), share))
    middle = sorted(known, key=lambda i: seconds[i])[(len(known) - 1) // 2]
    of_ranks = curves.take(np.array([index.get(name, middle) for name in classes], dtype=np.intp))
    plan = problem.in_multiples(equal_finish(problem, of_ranks), of_ranks)
    before, after = (
        float(np.max(of_ranks.seconds(one.samples))) for one in (problem.current, plan)
    )
    return plan if after < (1 - _LEAST_GAIN) * before else None
