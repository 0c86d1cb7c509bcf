"""Ranks that are taken to be equal."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.solvers.equal_ranks import drawn_to_equality, nearly_even


def test_ranks_that_finish_together_are_equal_however_much_of_it_is_communication():
    """Eight ranks, half of which compute for a fifth of their time; two are off by chance."""
    size, computing = 8, np.tile([1.0, 0.2], 4)
    none, off = np.zeros(size), np.array([0.02, 0.004, *[0.0] * 6])
    points = np.array([[100.0] * size, [200.0] * size])
    seconds = 0.1 * np.exp(off)
    curves = PosteriorCurves(
        points,
        np.array([seconds, seconds * 2**computing]),
        slope=0.001 * computing,
        fixed=none,
        sd=0.02 * np.array([computing, computing]),
        elasticity_sd=none,
        roughness=none,
        noise=0.05 * computing,
        rounds=np.full(size, 10.0),
        first_seconds=none,
        life=np.full(size, 333.0),
        computing=computing,
        periods=SlowPeriods(none, none, none, np.full(size, 1000.0)),
    )
    problem = Problem(100 * size, Bounds.of(size), Plan((100,) * size))
    drawn = drawn_to_equality(curves, problem, nearly_even(problem))
    samples = problem.current.samples
    assert np.ptp(np.log(curves.seconds(samples))) > 0.019
    assert np.ptp(np.log(drawn.seconds(samples))) < 0.005
