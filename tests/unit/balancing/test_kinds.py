"""Ranks of a kind."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Plan
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.solvers.kinds import Kinds, drawn_together


def test_ranks_that_finish_together_are_alike_however_much_of_it_is_communication():
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
    plan = Plan((100,) * size)
    drawn = drawn_together(curves, plan, Kinds.of(plan))
    assert np.ptp(np.log(curves.seconds(plan.samples))) > 0.019
    assert np.ptp(np.log(drawn.seconds(plan.samples))) < 0.005


def test_kinds_are_shares_with_gaps_between_them():
    """A share of its own, ranks without samples, and shares as far apart as any make no kind."""
    kinds = Kinds.of(Plan((16, 30, 64, 17, 64, 66, 0, 0)))
    assert kinds.together.tolist() == [True, False, True, True, True, True, False, False]
    np.testing.assert_allclose(kinds.batch_sizes, [16.5, 30, 194 / 3, 16.5, 194 / 3, 194 / 3, 0, 0])
    chain = np.round(20 * 1.1 ** np.arange(12)).astype(int)
    assert not Kinds.of(Plan(tuple(chain))).together.any()
