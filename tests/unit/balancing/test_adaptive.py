"""Ours: close to the optimum from a cold start on any curve, at rest, and awake to changes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_curves import (
    CURVES_VARIABLE,
    Setting,
    cold_run,
    device_cases,
    generated_case,
    read_curves,
)
from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.balancing.plan import FIRST_ROUND_STEPS
from hvd_dbs.balancing.time_models.curve_prior import CurvePrior
from tests.unit.balancing.rounds import controller_of, fold, trained


def cold_runs(cases, setting=None):
    setting = setting or Setting()
    runs = [cold_run(case, strategies.adaptive(), setting, n) for n, case in enumerate(cases)]
    return np.array([run.over[-1] for run in runs]), runs


@pytest.mark.parametrize("kind", ["sawtooth", "affine", "saturating"])
def test_cold_starts_end_near_the_optimum(kind):
    over, runs = cold_runs([generated_case(kind, 300 + seed) for seed in range(8)])
    assert np.median(over) <= 0.01 and np.mean(over <= 0.05) >= 0.85
    # From cold, all that is lost together is worth a few steps; half of it is the first round.
    assert np.mean([run.over.sum() for run in runs]) < 4


def test_measured_gpu_curves():
    """The figures are not ours to pass on: they are read where they are, if they are there."""
    path = os.environ.get(CURVES_VARIABLE)
    if not path or not Path(path).exists():
        pytest.skip(f"set {CURVES_VARIABLE} to a file of device,batch_size,milliseconds")
    over, runs = cold_runs(device_cases(read_curves(Path(path)), range(64, 385, 16)))
    assert np.mean(over <= 0.03) >= 0.95
    assert np.median(over) <= 0.005
    assert over.max() <= 0.08
    assert np.mean([run.num_late_changes == 0 for run in runs]) >= 0.93


def test_less_over_the_optimum_than_the_other_presets():
    cases = [generated_case("sawtooth", 200 + seed) for seed in range(6)]
    mean = {
        name: np.mean(
            [
                cold_run(case, strategies.resolve(name), Setting(), n).over[-1]
                for n, case in enumerate(cases)
            ]
        )
        for name in ("adaptive", "dbs", "lb_bsp_gpu", "omnilearn", "cannikin")
    }
    assert min(mean, key=mean.get) == "adaptive"


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_change_of_pace_is_followed_within_a_few_decisions(factor):
    rng = np.random.default_rng(0)
    controller = controller_of(4)
    factors = np.array([1.0, 1.0, 2.0, 2.0])
    trained(controller, factors, 30, rng)
    factors[1] *= factor
    over = trained(controller, factors, 30, rng) * np.sum(1 / factors) / (0.001 * (256 + 16))
    assert np.mean(over[5:]) <= 1.04


@pytest.mark.parametrize("noise", [0.01, 0.08])
def test_equal_machines_stay_even_through_noise_and_pauses(noise):
    controller = controller_of(8)
    pauses = range(7, 60, 5)
    seconds = trained(controller, np.ones(8), 60, np.random.default_rng(2), noise, pauses)
    assert np.mean(seconds) <= 1.01 * seconds[0]


def test_one_slow_rank_is_found_among_equal_ones():
    controller = controller_of(16)
    factors = np.where(np.arange(16) == 5, 3.0, 1.0)
    trained(controller, factors, 30, np.random.default_rng(3))
    samples = controller.plan.samples
    assert samples[5] < 0.5 * np.median(samples) and np.ptp(np.delete(samples, 5)) <= 4


def test_a_change_is_worth_as_much_however_long_ranks_wait_for_each_other():
    """Whether that is communication, or other ranks that pause."""
    plans = []
    for seconds in (0.0, 100.0):
        controller = controller_of(2)
        controller.note_communication(seconds)
        trained(controller, np.array([1.0, 1.08]), 12, np.random.default_rng(4), noise=0.002)
        plans.append(controller.plan.batch_sizes)
    assert plans[0] == plans[1] != (64, 64)


def test_asks_often_while_plans_change_and_rarely_when_calm():
    rng = np.random.default_rng(3)
    controller = Controller(strategies.adaptive(), 256, Bounds.of(4, 1), 4)
    assert controller.steps_to_next == FIRST_ROUND_STEPS
    trained(controller, np.array([1.0, 1.0, 2.0, 2.0]), 10, rng)
    moving = controller.steps_to_next
    trained(controller, np.array([1.0, 1.0, 2.0, 2.0]), 150, rng)
    calm = controller.steps_to_next
    trained(controller, np.array([4.0, 1.0, 2.0, 2.0]), 3, rng)
    assert controller.steps_to_next < calm and moving < calm and calm == 20


def test_what_a_decision_costs_sets_how_often_it_is_taken():
    """k = sqrt(2 c / r): four times the cost, twice the steps."""
    due = []
    for seconds in (0.01, 0.04):
        controller = Controller(strategies.adaptive(), 256, Bounds.of(4, 1), 4)
        controller.decision_seconds = seconds
        trained(controller, np.ones(4), 1, np.random.default_rng(3))
        due.append(controller.steps_to_next)
    assert abs(due[1] - 2 * due[0]) <= 1


def test_sees_communication_that_computing_does_not_hide():
    """Rank 0 computes as fast as rank 1, but its communication takes longer."""
    controller = Controller(strategies.adaptive(), 128, Bounds.of(2, 1), 2)
    for _ in range(30):
        samples = controller.plan.samples
        busy = 0.001 * samples
        measurement = Measurement.of(
            samples,
            busy,
            num_steps=[5, 5],
            first_bucket_seconds=0.5 * busy,
            overlap_seconds=[0.05, 0.0],
        )
        controller.decide(controller.observe(measurement))
    # max(b, b/2 + 50) = 128 - b at b = 52: 76 ms instead of 82 with an even split.
    assert abs(controller.plan.batch_sizes[0] - 52) <= 3


@pytest.mark.parametrize(
    ("size", "num_flipping", "to_slow", "to_usual", "num_steps"),
    [(128, 32, 1 / 60, 1 / 30, 240), (64, 8, 1 / 120, 1 / 60, 600)],
)
def test_ranks_that_become_slow_again_and_again_are_kept_light_among_many(
    size, num_flipping, to_slow, to_usual, num_steps
):
    rng = np.random.default_rng(10)
    controller, flips = controller_of(size, batch_size=32), np.arange(size) < num_flipping
    is_slow, quiet = np.zeros(size, dtype=bool), []
    for step in range(num_steps):
        is_slow = np.where(
            rng.random(size) < np.where(is_slow, to_usual, to_slow), ~is_slow, is_slow
        )
        is_slow &= flips
        samples = controller.plan.samples
        if step > num_steps * 2 // 3:
            quiet.append(np.mean(samples[flips & ~is_slow]) / np.mean(samples[~flips]))
        seconds = (0.004 + 0.001 * samples) * np.where(is_slow, 2.5, 1.0)
        measured = seconds * (1 + 0.02 * rng.standard_normal(size))
        controller.decide(
            controller.observe(Measurement.of(samples, measured, num_steps=[1.0] * size))
        )
    assert np.mean(quiet) < 0.75


def test_a_jump_of_the_curve_is_remembered_and_leaves_the_pace_alone():
    model, rng = strategies.adaptive().model, np.random.default_rng(7)
    state = model.init(1)

    def after(batch_size, seconds, rounds):
        nonlocal state
        for _ in range(rounds):
            measured = seconds * (1 + 0.02 * rng.standard_normal())
            state = model.update(state, Measurement.of([batch_size], [measured], num_steps=[5.0]))
        curves = model.curves(model.record(state))
        return [float(curves.seconds(np.array([b]))[0]) for b in (24.0, 28.0)]

    after(24, 0.024, 10)
    after(28, 0.045, 2)
    assert after(24, 0.024, 1) == pytest.approx([0.024, 0.045], rel=0.05)


def test_a_jump_of_the_curve_says_nothing_of_batch_sizes_far_away():
    """A line through it would show that more samples cost little, and fewer save little."""
    model, rng = strategies.adaptive().model, np.random.default_rng(13)
    state = model.init(1)
    for batch_size, factor, rounds in ((64, 1.0, 10), (44, 1.0, 10), (24, 1.5, 4), (64, 1.0, 10)):
        for _ in range(rounds):
            seconds = (0.004 + 0.001 * batch_size) * factor * (1 + 0.02 * rng.standard_normal())
            state = model.update(state, Measurement.of([batch_size], [seconds], num_steps=[5.0]))
    curves = model.curves(model.record(state))
    there, far = (float(curves.seconds(np.array([b]))[0]) for b in (24.0, 96.0))
    assert there == pytest.approx(1.5 * 0.028, rel=0.05)
    assert far == pytest.approx(0.1, rel=0.05)


def test_fewer_samples_that_take_longer_leave_open_what_many_take():
    """Once such a rank, one of 1,024, was given twelve times its samples."""
    model = strategies.adaptive().model
    state = fold(model, [(33, 0.031)] * 3 + [(20, 0.040)] * 3 + [(9, 0.065)] * 3, num_steps=[5.0])
    deviation = model.curves(model.record(state)).deviations(np.array([396.0]))[0]
    assert deviation > 1


def test_points_that_are_hardly_known_leave_the_fixed_part_as_well_known_as_before():
    """The process knows that neighbours are alike, but not that one of them was measured once."""
    first, roughness, jumps = np.array([[64.0, 0.0]]), np.array([0.0009]), np.zeros((1, 2))
    none, two = np.full((1, 2), np.nan), np.array([[16.0, 17.0]])
    covariance = np.diag([0.1**2, 0.003**2])[np.newaxis]
    _, before = CurvePrior(
        first, roughness, jumps, none, np.zeros((1, 2)), np.zeros((1, 2, 2))
    ).elasticity(np.array([17.0]))
    mean = np.log(two / 64)
    _, after = CurvePrior(first, roughness, jumps, two, mean, covariance).elasticity(two[:, 1])
    assert 0 < after <= before


def test_a_light_rank_that_was_slow_is_not_taken_to_do_any_number_of_samples():
    """With few samples a step is mostly its fixed part, which says little of many samples."""
    model, state = strategies.adaptive().model, strategies.adaptive().model.init(1)
    for batch_size in [24] * 6 + [12] * 3 + [1] * 6:
        seconds = 0.005 + 0.0005 * batch_size
        state = model.update(state, Measurement.of([batch_size], [seconds], num_steps=[5.0]))
    curves = model.curves(model.record(state))
    assert curves.seconds(np.array([96.0]))[0] == pytest.approx(0.053, rel=0.25)


def test_a_batch_size_that_fills_tiles_is_tried_and_kept_where_it_is_fast():
    controller, rng = controller_of(2, batch_size=30), np.random.default_rng(8)
    for _ in range(40):
        samples = controller.plan.samples
        seconds = (0.004 + 0.001 * samples) * np.where(samples % 16 == 0, 0.8, 1.0)
        measured = seconds * (1 + 0.01 * rng.standard_normal(2))
        controller.decide(
            controller.observe(Measurement.of(samples, measured, num_steps=[5.0] * 2))
        )
    assert sorted(controller.plan.batch_sizes) == [28, 32]


def test_a_thousand_noisy_equal_ranks_stay_even_from_the_first_decision():
    controller = controller_of(1024, batch_size=32)
    trained(controller, np.ones(1024), 12, np.random.default_rng(9), noise=0.2)
    assert np.ptp(controller.plan.samples) == 0


def test_noise_at_ever_new_batch_sizes_is_not_all_taken_for_their_curve():
    """Plans follow noise by a few samples, so that no batch size comes twice."""
    model, rng = strategies.adaptive().model, np.random.default_rng(4)
    ranks, b = 16, np.full(16, 100.0)
    state = model.init(ranks)
    for _ in range(60):
        seconds = (0.02 + 0.001 * b) * np.maximum(1 + 0.2 * rng.standard_normal(ranks), 0.1)
        state = model.update(state, Measurement.of(b, seconds, num_steps=[1.0] * ranks))
        b = 100.0 + rng.integers(-25, 25, ranks)
    curves = model.curves(model.record(state))
    assert np.median(curves.noise) == pytest.approx(0.2, rel=0.3)
    assert np.median(curves.roughness) < np.median(curves.noise) * 1.2


def test_large_batches_are_not_drawn_to_whole_tiles():
    """Of twenty tiles none saves much, and noise looks like luck."""
    whole, every = 0, 0
    for seed in range(4):
        rng, controller = np.random.default_rng(seed), controller_of(4, 192)
        for _ in range(40):
            samples = controller.plan.samples
            seconds = (0.01 + 0.001 * samples) / np.array([1.0, 1.0, 0.5, 0.25])
            seconds *= np.exp(0.06 * rng.standard_normal(4))
            measurement = Measurement.of(samples, seconds, num_steps=[1] * 4)
            decision = controller.decide(controller.observe(measurement))
            if decision.changed:
                whole += int(np.sum(decision.plan.samples % 16 == 0))
                every += 4
    assert every and whole / every <= 0.2


@pytest.mark.parametrize(("batch_size", "saved"), [(16, 0.5), (32, 0.25), (64, 0.125)])
def test_filling_the_last_tile_of_a_step_may_save_half_of_it(batch_size, saved):
    """Of log seconds; a curve that has been seen one sample below it."""
    model = strategies.adaptive().model
    state = fold(model, [(batch_size - 1, 0.1)] * 30, num_steps=[5.0])
    curves = model.curves(model.record(state))
    at, below = (float(curves.deviations(np.array([b]))[0]) for b in (batch_size, batch_size - 2.0))
    assert at == pytest.approx(saved, rel=0.1)
    assert below < 0.1
