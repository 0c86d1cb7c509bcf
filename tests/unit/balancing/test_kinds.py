"""Ranks of a kind."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Plan
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.solvers.kinds import Kinds, drawn_together


def curves_of(off, computing=1.0, sd=0.02, noise=0.05, slower=0.0, number=0.0):
    """Curves of ranks whose steps of 100 samples take 0.1 s, and `off` more in the log."""
    size = len(off)
    none, computing = np.zeros(size), np.broadcast_to(computing, size)
    seconds = 0.1 * np.exp(off)
    return PosteriorCurves(
        np.array([[100.0] * size, [200.0] * size]),
        np.array([seconds, seconds * 2**computing]),
        slope=0.001 * computing,
        fixed=none,
        variance=sd**2 * np.array([computing, computing]) ** 2,
        elasticity_sd=none,
        roughness=none,
        noise=noise * computing,
        rounds=np.full(size, 10.0),
        first_seconds=none,
        life=np.full(size, 333.0),
        computing=computing,
        periods=SlowPeriods(none + slower, none + number, none, np.full(size, 1000.0)),
    )


def drawn(curves):
    """Log seconds of even shares, once ranks of a kind are drawn together, over their median."""
    plan = Plan((100,) * curves.slope.size)
    seconds = np.log(drawn_together(curves, plan, Kinds.of(plan)).seconds(plan.samples))
    return seconds - np.median(seconds)


def test_ranks_that_finish_together_are_alike_however_much_of_it_is_communication():
    """Eight ranks, half of which compute for a fifth of their time; two are off by chance."""
    curves = curves_of([0.02, 0.004, *[0.0] * 6], computing=np.tile([1.0, 0.2], 4))
    assert np.ptp(np.log(curves.seconds(np.full(8, 100.0)))) > 0.019
    assert np.ptp(drawn(curves)) < 0.005


@pytest.mark.parametrize(
    ("number", "noise", "expected"),
    [(0, 0.05, 0.0), (3, 0.05, 0.8), (3, 0.5, 0.0)],
    ids=["first time", "again", "again, but as unsure as a noisy step"],
)
def test_the_kind_of_a_rank_says_nothing_of_it_while_it_may_be_slow_again(number, noise, expected):
    off, sd, slower, numbers = np.zeros((4, 16))
    off[0], sd[0], slower[0], numbers[0] = 0.8, 0.4, 0.8, number
    sd[1:] = 0.01
    curves = curves_of(off, sd=sd, noise=noise, slower=slower, number=numbers)
    assert drawn(curves)[0] == pytest.approx(expected, abs=0.2)


def test_thousands_of_ranks_are_drawn_together_as_far_as_they_are_alike():
    random = np.random.default_rng(3)
    off = np.append(random.normal(0, 0.02, 4999), 1.0)
    equal, unequal = (drawn(curves_of(off, sd=sd)) for sd in (0.02, 0.002))
    assert np.std(equal[:-1]) < 0.005
    np.testing.assert_allclose(unequal[:-1], off[:-1] - np.median(off), atol=0.004)
    for found in (equal, unequal):
        assert found[-1] == pytest.approx(1.0, abs=0.05)


def test_kinds_are_shares_with_gaps_between_them():
    """A share of its own, ranks without samples, and shares as far apart as any make no kind."""
    kinds = Kinds.of(Plan((16, 30, 64, 17, 64, 66, 0, 0)))
    assert kinds.together.tolist() == [True, False, True, True, True, True, False, False]
    np.testing.assert_allclose(kinds.batch_sizes, [16.5, 30, 194 / 3, 16.5, 194 / 3, 194 / 3, 0, 0])
    chain = np.round(20 * 1.1 ** np.arange(12)).astype(int)
    assert not Kinds.of(Plan(tuple(chain))).together.any()
