"""Ours: pauses, slow periods and changes of pace, at the start and later."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Measurement, Plan, strategies
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.decision_interval import DecisionInterval
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.balancing.time_models.curve_prior import CurvePrior
from tests.unit.balancing.rounds import (
    controller_of,
    fold,
    over_after_a_disturbed_start,
    round_of,
    seconds_at,
    trained,
)


def test_a_rank_that_was_slow_is_at_its_usual_pace_again_at_once():
    model = strategies.adaptive().model
    state, rng = model.init(1), np.random.default_rng(5)

    def after(seconds, rounds):
        nonlocal state
        for _ in range(rounds):
            measured = seconds * (1 + 0.05 * rng.standard_normal())
            state = model.update(state, Measurement.of([32], [measured], num_steps=[1.0]))
        curves = model.curves(model.record(state))
        b = np.array([32.0])
        return float(curves.seconds(b)[0]), float(curves.deviations(b)[0])

    _, sure = after(0.1, 60)
    slow, _ = after(0.2, 10)
    again, sure_again = after(0.1, 2)
    assert slow == pytest.approx(0.2, rel=0.1)
    assert again == pytest.approx(0.1, rel=0.02) and sure_again < 1.5 * sure


@pytest.mark.parametrize(("batch_size", "saved"), [(48, 0.3), (64, 0.3)])
def test_a_rank_that_is_no_longer_slow_once_its_tiles_are_full_is_at_its_usual_pace(
    batch_size, saved
):
    """A full tile may save so much at the baseline speed too."""
    model, rng = strategies.adaptive().model, np.random.default_rng(5)
    state = model.init(1)
    usual = 0.1 * (0.15 + 0.85 * batch_size / 40) * (1 - saved)
    for b, seconds, rounds in [(40, 0.1, 60), (40, 0.2, 10), (batch_size, usual, 2)]:
        for measured in seconds * (1 + 0.03 * rng.standard_normal(rounds)):
            state = model.update(state, Measurement.of([b], [measured], num_steps=[1.0]))
    seconds = model.curves(model.record(state)).seconds
    assert seconds(np.array([40.0]))[0] == pytest.approx(0.1, rel=0.03)
    assert seconds(np.array([float(batch_size)]))[0] == pytest.approx(usual, rel=0.05)


def test_a_delay_that_ends_within_a_round_leaves_the_curve_as_it_was_before():
    """Once, what the delay made of few samples was kept, and then made the rank seem fast."""
    model, rng = strategies.adaptive().model, np.random.default_rng(5)
    state, usual = model.init(1), {b: 0.004 + 0.0007 * b for b in (25, 12, 4, 1)}

    def measured(b, delay, num_steps):
        return round_of(b, (usual[b] + delay) * (1 + 0.02 * rng.standard_normal(num_steps)))

    for _ in range(60):
        state = model.update(state, measured(25, 0.0, 5))
    for b, rounds in ((25, 2), (12, 3), (4, 3), (1, 3), (4, 20)):
        for _ in range(rounds):
            state = model.update(state, measured(b, 0.02, 3))
    partly = round_of(4, [usual[4] + 0.02, usual[4]])
    for measurement in (partly, measured(4, 0.0, 3), measured(4, 0.0, 3)):
        state = model.update(state, measurement)
    for b, tolerance in ((4, 0.05), (25, 0.05), (60, 0.3)):
        assert seconds_at(model, state, b) == pytest.approx(0.004 + 0.0007 * b, rel=tolerance)


def test_a_curve_that_cannot_be_is_not_trusted_at_few_samples():
    """Once, 32 samples then seemed to take no longer than one, and the rank got all of them."""
    model, rng = strategies.adaptive().model, np.random.default_rng(5)
    # The pace has changed while the first two batch sizes were new: fewer samples took longer.
    rounds = [(32, 0.137)] * 20 + [(16, 0.147)] * 2 + [(21, 0.158)] * 3 + [(1, 0.013)] * 3
    noisy = [(b, t * (1 + 0.02 * rng.standard_normal())) for b, t in rounds]
    state = fold(model, noisy, num_steps=[1.0])
    assert seconds_at(model, state, 1) == pytest.approx(0.013, rel=0.05)
    assert seconds_at(model, state, 32) > 0.08


def test_between_two_points_no_curve_goes_far_beyond_both():
    """Once, 14 samples were expected to take seven times as long as 16: 13 had been a jump."""
    points = np.array([[1.0, 8.0, 13.0, 16.0, 34.0, 47.0]])
    known = np.log([[0.005, 0.03, 0.047, 0.133, 0.109, 0.154]])
    first, jumps = np.array([[32.0, np.log(0.1)]]), 0.2 * (points == 13)
    covariance = 0.003 * np.eye(6)[np.newaxis]
    curve = CurvePrior(first, np.array([0.0009]), jumps, points, known, covariance)
    mean, variance, _ = curve.at(np.array([14.0]))
    assert 0.047 <= np.exp(mean[0]) <= 0.1331
    assert variance[0] > 0.5


def test_a_rank_at_its_usual_pace_is_not_taken_to_be_faster_because_slow_periods_are_frequent():
    """Steps of 5 % noise are at times a tenth shorter, which changes hardly what is known."""
    model, rng = strategies.adaptive().model, np.random.default_rng(8)
    state = model.init(1)
    for _ in range(30):
        for factor, rounds in ((1.0, 12), (2.0, 4)):
            for _ in range(rounds):
                steps = 0.1 * factor * np.exp(0.05 * rng.standard_normal(1))
                state = model.update(model.pool(state, model.record(state)), round_of(32, steps))
    for _ in range(10):
        state = model.update(state, round_of(32, 0.1 * np.exp(0.05 * rng.standard_normal(1))))
    state = model.update(state, round_of(32, [0.1 * np.exp(-0.16)]))
    assert seconds_at(model, state, 32) == pytest.approx(0.1, rel=0.04)


@pytest.mark.parametrize(("chance", "factor"), [(0.02, 3.0), (0.05, 2.0), (0.05, 5.0)])
def test_equal_machines_that_pause_now_and_then_keep_an_even_plan(chance, factor):
    controller, rng = controller_of(4), np.random.default_rng(6)
    uneven = 0
    for _ in range(300):
        samples = controller.plan.samples
        steps = 1 + 0.03 * rng.standard_normal(4)
        steps = np.where(rng.random(4) < chance, factor, 1.0) * steps
        measured = (0.004 + 0.0005 * samples) * steps
        controller.decide(
            controller.observe(Measurement.of(samples, measured, num_steps=[1.0] * 4))
        )
        uneven += np.ptp(controller.plan.samples) > 4
    assert uneven <= 6


@pytest.mark.parametrize("num_rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("factor", [10.0, 30.0])
def test_a_large_change_soon_after_the_start_is_followed(num_rounds, factor):
    """Before a rank's noise is known, a large surprise may be noise: one alone is no trend."""
    controller, rng = controller_of(3, batch_size=32), np.random.default_rng(17)
    trained(controller, np.ones(3), num_rounds, rng)
    seconds = trained(controller, np.array([factor, 1.0, 1.0]), 20, rng)
    assert controller.plan.batch_sizes[0] <= 5
    assert np.median(seconds) < 0.5 * seconds[0]


@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_a_change_is_followed_however_little_steps_differ(noise):
    controller, rng = controller_of(2), np.random.default_rng(12)
    trained(controller, np.ones(2), 200, rng, noise)
    assert controller.plan.batch_sizes == (64, 64)
    trained(controller, np.array([1.0, 3.0]), 6, rng, noise)
    assert controller.plan.batch_sizes[1] < 40


def test_what_was_seen_of_a_disturbed_rank_at_the_start_is_seen_again():
    """Once, batch sizes that it had then stayed slow for good, and none of them was taken again."""
    over = [over_after_a_disturbed_start(seed) for seed in range(6)]
    assert np.mean(over) < 0.01 and np.max(over) < 0.03


def test_a_step_without_time_in_the_first_round_tells_nothing():
    """Once, the rank was unknown for good."""
    model = strategies.adaptive().model
    measurement = Measurement.of([32], [0.2], num_steps=[2], quartile_seconds=[0.0])
    state = model.update(model.init(1), measurement)
    state = model.update(state, Measurement.of([32], [0.2], num_steps=[2], quartile_seconds=[0.0]))
    seconds = model.curves(model.record(state)).seconds
    assert seconds(np.array([32.0])) == pytest.approx([0.2], rel=0.05)


def test_equal_ranks_that_pause_get_equal_shares_again():
    """Two ranks are slow for a moment, then all are equal but for pauses."""
    controller, rng = controller_of(8), np.random.default_rng(5)
    trained(controller, np.ones(8), 5, rng)
    trained(controller, np.array([1.0] * 6 + [3.0] * 2), 4, rng)
    assert len(set(controller.plan.batch_sizes)) > 1
    trained(controller, np.ones(8), 40, rng)
    assert set(controller.plan.batch_sizes) == {64}


def test_equal_ranks_with_a_plan_of_other_shares_get_equal_ones():
    """Where noise of 10 % hides from each rank that it is equal."""
    controller, rng = controller_of(64, batch_size=32), np.random.default_rng(9)
    controller.adopt(Plan((28,) * 2 + (32,) * 54 + (33,) * 8))
    trained(controller, np.ones(64), 40, rng, noise=0.1)
    assert set(controller.plan.batch_sizes) == {32}


def test_equal_ranks_beside_a_slow_one_have_nearly_equal_shares():
    """Noise of 15 % says nothing else of each of them; shares would differ by a quarter by it."""
    controller, rng = controller_of(256), np.random.default_rng(8)
    trained(controller, np.array([4.0] + [1.0] * 255), 40, rng, noise=0.15)
    slow, *equal = controller.plan.batch_sizes
    assert slow < 16
    assert np.ptp(equal) <= 7


@pytest.mark.parametrize("num_rounds", [20, 60])
def test_equal_ranks_with_a_plan_that_is_off_by_a_sample_get_equal_shares(num_rounds):
    """What is not known of each rank does not make up for it: none is expected to be the latest."""
    controller, rng = controller_of(64), np.random.default_rng(0)
    trained(controller, np.ones(64), num_rounds, rng, noise=0.06)
    controller.adopt(Plan((63,) * 2 + (64,) * 60 + (65,) * 2))
    trained(controller, np.ones(64), 30, rng, noise=0.06)
    assert set(controller.plan.batch_sizes) == {64}


def test_ranks_that_become_slow_by_different_amounts_are_seldom_late():
    """An eighth of 128 ranks is. Precautions for the mean alone leave a tenth of the steps late."""
    rng, late = np.random.default_rng(10), []
    size, controller = 128, controller_of(128, batch_size=32)
    flips, is_slow, factor = np.arange(size) < 16, np.zeros(size, dtype=bool), np.ones(size)
    for _ in range(500):
        flip = rng.random(size) < np.where(is_slow, 1 / 30, 1 / 60)
        begins = flips & flip & ~is_slow
        factor[begins] = 2.5 * np.exp(0.3 * rng.standard_normal(np.count_nonzero(begins)))
        is_slow ^= flips & flip
        samples = controller.plan.samples
        seconds = (0.004 + 0.001 * samples) * np.where(is_slow, factor, 1.0)
        late.append(seconds[flips].max() > 1.05 * seconds[~flips].max())
        measured = seconds * (1 + 0.02 * rng.standard_normal(size))
        measurement = Measurement.of(samples, measured, num_steps=np.ones(size))
        controller.decide(controller.observe(measurement))
    assert np.mean(late[300:]) < 0.05


def test_a_change_that_is_taken_back_makes_no_decision_more_frequent():
    """Half of the step was promised; the next round shows that nothing had changed."""
    solver = DecisionInterval(EqualFinish())
    even, state = Plan((48, 48)), solver.init()

    def steps(plan, per_sample, state):
        curves = AffineCurves(fixed=np.zeros(2), per_sample=np.array(per_sample))
        problem = Problem(96, Bounds.of(2), plan, decision_seconds=0.2)
        proposal, state = solver.solve(state, problem, curves)
        return proposal.plan, proposal.steps_to_next, state

    _, before, state = steps(even, [0.01, 0.01], state)
    plan, promised, state = steps(even, [0.01, 0.03], state)
    assert plan != even and promised < before
    plan, _, state = steps(plan, [0.01, 0.01], state)
    _, later, _ = steps(plan, [0.01, 0.01], state)
    assert plan == even and later > before


@pytest.mark.parametrize("drift", [-0.01, 0.0, 0.005, 0.01, 0.02])
def test_a_pace_that_drifts_is_followed_and_is_no_noise(drift):
    """Each round takes longer or shorter than the one before; by chance they differ by 1.3 %."""
    model, rng = strategies.adaptive().model, np.random.default_rng(1)
    ranks, steps, noise, pace = 20, 5, 0.03, 0.1
    state = model.init(ranks)
    for k in range(60):
        pace *= 1 + drift if k >= 10 else 1
        seconds = pace * np.exp(noise / np.sqrt(steps) * rng.standard_normal(ranks))
        state = model.update(
            state, Measurement.of([32.0] * ranks, seconds, num_steps=[steps] * ranks)
        )
    curves = model.curves(model.record(state))
    assert np.mean(curves.noise) == pytest.approx(noise, rel=0.3)
    lag = np.log(pace / curves.seconds(np.full(ranks, 32.0)))
    assert abs(np.mean(lag)) < 0.021
