"""Among thousands of ranks some are misread in every round: plans must not follow them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hvd_dbs.balancing import Bounds, Measurement, Plan
from hvd_dbs.balancing.piecewise_curves import PiecewiseCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.chance import equal_by_chance
from hvd_dbs.balancing.solvers.fewest_moves import with_fewest_moves
from hvd_dbs.balancing.solvers.worth_the_switch import WorthTheSwitch
from hvd_dbs.balancing.time_models.visited_points import VisitedPoints
from hvd_dbs.balancing.visited_curves import SlowSpells, VisitedCurves


def curves_at(points, times, spread=0.01):
    """Curves of ranks that have visited one batch size each."""
    size = len(times)
    unknown = np.full(size, np.nan)
    return VisitedCurves(
        points=np.vstack([points, unknown]),
        times=np.vstack([times, unknown]),
        slope=0.9 * times / points,
        spread=np.full(size, spread),
        unrest=np.zeros(size),
        usual=np.log(times) - 0.9 * np.log(points),
        spells=SlowSpells.none(size),
    )


def lines(*per_sample):
    one = np.ones((1, len(per_sample)))
    return PiecewiseCurves(0 * one, np.inf * one, 0 * one, np.array([per_sample]))


def test_one_slow_rank_among_thousands_moves_few_others():
    size = 4096
    points = np.full(size, 32.0)
    points[:2] = 33, 31  # An even split is left for more than this.
    times = 0.02 * np.exp(np.random.default_rng(0).normal(0, 0.01, size))
    times[7] = 0.04
    problem = Problem(32 * size, Bounds.of(size, 1), Plan(tuple(points.astype(int).tolist())))
    solver = WorthTheSwitch()
    plan = solver.solve(solver.init(), problem, curves_at(points, times))[0].plan
    assert plan.batch_sizes[7] < 20
    assert np.sum(plan.samples != points) < 32


def test_where_many_ranks_have_another_pace_the_plan_is_the_best_one():
    size = 4096
    points = np.full(size, 32.0)
    points[:2] = 33, 31
    times = 0.02 * np.exp(np.random.default_rng(0).normal(0, 0.01, size))
    times[: size // 10] *= 1.01
    times[7] = 0.04
    curves = curves_at(points, times)
    curves = replace(curves, unrest=np.where(np.arange(size) < size // 10, 2.0, 0.0))
    problem = Problem(32 * size, Bounds.of(size, 1), Plan(tuple(points.astype(int).tolist())))
    solver = WorthTheSwitch()
    plan = solver.solve(solver.init(), problem, curves)[0].plan
    assert np.sum(plan.samples != points) > size // 20


def test_what_late_ranks_give_goes_to_those_with_most_time_left():
    problem = Problem(120, Bounds.of(4), Plan((30, 30, 34, 26)))
    best, curves = Plan((35, 35, 32, 18)), lines(1.0, 1.0, 1.05, 1.9)
    now = curves.seconds(problem.current.samples)
    doubtful = with_fewest_moves(problem, curves, best, now / 1.1)
    assert doubtful.batch_sizes == (34, 34, 34, 18)
    assert with_fewest_moves(problem, curves, best, now) == best


def test_a_rank_that_gets_more_is_not_believed_to_need_hardly_more_time():
    # Beyond 30 samples rank 0 looks flat: its points are of two paces.
    curves = PiecewiseCurves(
        first=np.array([[0.0] * 4, [30.0, np.inf, np.inf, np.inf]]),
        last=np.array([[29.0, np.inf, np.inf, np.inf], [np.inf, -np.inf, -np.inf, -np.inf]]),
        start=np.array([[0.0] * 4, [30.0, 0.0, 0.0, 0.0]]),
        slope=np.array([[1.0, 1.0, 1.05, 1.9], [0.01, 1.0, 1.0, 1.0]]),
    )
    problem, best = Problem(120, Bounds.of(4), Plan((30, 30, 34, 26))), Plan((44, 34, 24, 18))
    at_least = curves.seconds(problem.current.samples) / 1.1
    plan = with_fewest_moves(problem, curves, best, at_least)
    assert plan.batch_sizes == (34, 34, 34, 18)  # By the curve alone rank 0 would get all 8.


def test_the_best_plan_stands_where_nobody_takes_what_is_missing():
    # Rank 0 is late with few samples and would take more: teeth.
    teeth = PiecewiseCurves(
        first=np.array([[0.0, 0.0], [11.0, np.inf]]),
        last=np.array([[10.0, np.inf], [np.inf, -np.inf]]),
        start=np.array([[50.0, 0.0], [10.0, 0.0]]),
        slope=np.array([[1.0, 1.0], [1.0, 1.0]]),
    )
    problem, best = Problem(30, Bounds.of(2), Plan((10, 20))), Plan((15, 15))
    now = teeth.seconds(problem.current.samples)
    assert with_fewest_moves(problem, teeth, best, now / 1.5) == best


def test_a_rank_whose_last_time_contradicts_its_curve_waits_to_be_seen_again():
    times = np.full(64, 0.02)
    times[3] = 0.03
    curves = curves_at(np.full(64, 32.0), times)
    assert not equal_by_chance(curves, times / 0.02)
    suspect = replace(curves, unrest=np.where(times > 0.02, 1.0, 0.0))
    assert equal_by_chance(suspect, times / 0.02)


def test_a_rank_a_little_late_keeps_most_of_its_samples():
    """Points close to each other that drift has mixed up made a slope of nearly nothing."""
    points = np.array([[34.0], [43.0]])
    curves = replace(
        curves_at(np.array([34.0]), np.array([0.0264])),
        points=points,
        times=np.array([[0.0264], [0.0266]]),
        slope=np.array([0.00003]),
    )
    assert curves.seconds(np.array([20.0]))[0] < 0.0245
    pieces = curves.in_pieces()
    assert pieces.seconds(np.array([20.0]))[0] < 0.0245


def test_few_rounds_that_happen_to_agree_are_not_all_the_noise_there_is():
    model = VisitedPoints()
    state = model.init(1)
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.09, 1.09):
        state = model.update(state, Measurement.of([32], [seconds], num_steps=[1]))
    assert state["changed"][0] == 0


def test_an_even_split_is_left_by_ranks_that_no_noise_explains_alone():
    size = 4096
    times = 0.02 * np.exp(np.random.default_rng(0).normal(0, 0.005, size))
    times[7], times[9] = 0.04, 0.021  # One is slow, one is five deviations off.
    problem = Problem(32 * size, Bounds.of(size, 1), Plan((32,) * size))
    solver = WorthTheSwitch()
    state = {**solver.init(), "odd_rank": 7, "calm": 10}
    plan = solver.solve(state, problem, curves_at(np.full(size, 32.0), times))[0].plan
    assert plan.batch_sizes[7] < 20
    assert plan.batch_sizes[9] == 32
