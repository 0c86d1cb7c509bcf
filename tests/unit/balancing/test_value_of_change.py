"""What a change of plan is worth, and what a step is expected to take."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.solvers.outlook import expected_longest, longest
from hvd_dbs.balancing.solvers.solver import Proposal
from hvd_dbs.balancing.solvers.value_of_change import ValueOfChange


def is_changed(current, life=333.0, first_seconds=0.0, sd=1e-6):
    """Whether two equal ranks are balanced that take a second a step, with the deviation `sd`."""
    none, sure = np.zeros(2), np.full(2, 1e-6)
    points = np.array([np.sort([sample, 1000.0 + sample]) for sample in current]).T
    curves = PosteriorCurves(
        points,
        0.001 * points,
        slope=np.full(2, 0.001),
        fixed=none,
        variance=np.full((2, 2), sd**2),
        elasticity_sd=none,
        roughness=none,
        noise=sure,
        rounds=np.full(2, 100.0),
        first_seconds=np.full(2, first_seconds),
        life=np.full(2, life),
        computing=np.ones(2),
        periods=SlowPeriods(none, none, none, np.full(2, 1000.0)),
    )
    problem = Problem(2000, Bounds.of(2), Plan(current))
    solver = ValueOfChange()
    proposal, _ = solver.solve(solver.init(), problem, curves)
    return proposal.plan != problem.current


@pytest.mark.parametrize(("current", "changes"), [((1005, 995), False), ((1008, 992), True)])
def test_a_change_has_to_save_what_a_switch_costs_in_the_steps_that_a_plan_lasts(current, changes):
    """Two steps in 333 of them: 0.6 % of a step."""
    assert is_changed(current) == changes


@pytest.mark.parametrize(("life", "changes"), [(333.0, True), (100.0, False)])
def test_first_steps_cost_more_where_the_pace_does_not_last(life, changes):
    """A change that saves 6.6 steps in 333: its first steps take three, and the next ones again."""
    assert is_changed((1020, 980), life, first_seconds=3.0) == changes


@pytest.mark.parametrize(("life", "changes"), [(333.0, False), (33.0, True)])
def test_what_a_further_round_shows_is_of_less_use_where_the_pace_does_not_last(life, changes):
    assert is_changed((1100, 900), life, sd=0.2) == changes


@pytest.mark.parametrize(("size", "expected"), [(1, 0.0), (2, 0.564), (64, 2.38), (4096, 3.6)])
def test_expected_longest_of_normal_times(size, expected):
    none, one = np.zeros(size), np.ones(size)
    assert expected_longest(none, one, none, none) == pytest.approx(expected, abs=0.2)


def test_expected_longest_of_a_rank_that_is_known_and_one_that_is_not():
    """E[max(m, Z)] = m Phi(m/s) + s phi(m/s)."""
    none = np.zeros(2)
    found = expected_longest(np.array([0.05, 0.0]), np.array([0.0, 0.1]), none, none)
    assert found == pytest.approx(0.0698, abs=0.003)


@pytest.mark.parametrize(("size", "chance"), [(1, 0.2), (64, 0.01), (1024, 0.001)])
def test_expected_longest_of_ranks_that_may_become_slow(size, chance):
    none, one = np.zeros(size), np.ones(size)
    expected = 0.7 * (1 - (1 - chance) ** size)
    found = expected_longest(none, none, chance * one, 0.7 * one)
    assert found == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("size", [64, 1024])
def test_a_rank_that_is_late_for_sure_counts_among_many_that_may_become_slow(size):
    """More ranks than are looked at would be later than it, if they became slow."""
    mean, chance = np.zeros(size), np.full(size, 1e-6)
    mean[size // 2], chance[size // 2] = 0.5, 0.0
    cases = np.stack([mean, np.zeros(size)])
    late, equal = longest(cases, np.full(size, 0.01), chance, np.full(size, 1.0))
    assert late >= 0.49
    assert equal < 0.1


def test_a_change_by_curves_that_are_taken_to_be_sure_is_not_said_to_be_worth_nothing():
    curves = AffineCurves(np.zeros(2), np.array([1.0, 2.0]))
    solver = ValueOfChange()
    for current, expected in (((15, 15), ""), ((20, 10), "no change is worth it")):
        problem = Problem(30, Bounds.of(2), Plan(current))
        proposal, _ = solver.solve(solver.init(), problem, curves)
        assert proposal == Proposal(Plan((20, 10)), expected)


def test_hope_is_for_tiles_that_are_new_and_for_points_that_are_known_less_well():
    none, size = np.zeros(2), 2
    curves = PosteriorCurves(
        np.array([[40.0, 48.0], [100.0, 100.0]]),
        np.array([[0.4, 0.48], [1.0, 1.0]]),
        slope=np.full(size, 0.01),
        fixed=none,
        variance=np.array([[1e-6, 1e-6], [0.01, 1e-6]]),
        elasticity_sd=none,
        roughness=np.full(size, 0.03),
        noise=np.full(size, 0.03),
        rounds=np.full(size, 100.0),
        first_seconds=none,
        life=np.full(size, 333.0),
        computing=np.ones(size),
        periods=SlowPeriods(none, none, none, np.full(size, 1000.0)),
    )
    hopeful = curves.hopeful(1.0, np.array([40.0, 48.0]))
    both = ((48.0, 1 / 6, 0.0), (49.0, 0.0, 0.0), (64.0, 0.045, 1 / 8), (100.0, 0.1, 0.0))
    for batch_size, first, second in both:
        b = np.full(2, batch_size)
        saved = np.log(curves.seconds(b) / hopeful.seconds(b))
        assert saved == pytest.approx([first, second], abs=0.01)
