"""Pauses: single steps that something holds up, and what tells them from a change of pace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement, strategies
from hvd_dbs.balancing.order_statistics import (
    QUARTILE,
    below_mean,
    lower_value,
    quartile_variance,
)
from tests.unit.balancing.rounds import round_of, seconds_at


def usual_rounds(num_rounds, num_steps, rng, pauses=0.0, longer=2.0):
    """Of 32 samples, 20 ms a step, of which a part takes longer."""
    for _ in range(num_rounds):
        steps = 0.02 * np.exp(0.03 * rng.standard_normal(num_steps))
        yield round_of(32, steps * np.where(rng.random(num_steps) < pauses, longer, 1.0))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 9, 20, 60])
def test_a_quarter_of_normal_numbers_is_below_their_mean_by_what_is_expected(number):
    found = lower_value(np.random.default_rng(number).standard_normal((number, 20000)), QUARTILE)
    assert -found.mean() == pytest.approx(below_mean(np.array(float(number)), QUARTILE), abs=0.04)
    assert found.var() <= 1.15 * quartile_variance(np.array(float(number)))


def test_steps_that_do_not_count_are_no_part_of_a_quartile():
    steps = np.array([[3.0, np.nan], [np.nan, np.nan], [1.0, np.nan], [2.0, np.nan], [4.0, np.nan]])
    np.testing.assert_array_equal(lower_value(steps, QUARTILE), [1.0, np.nan])


@pytest.mark.parametrize("longer", [2.0, 3.0])
def test_a_rank_that_pauses_in_each_round_keeps_its_pace(longer):
    """Once, rounds that were longer by the same one after the other were a change."""
    model, rng = strategies.adaptive().model, np.random.default_rng(2)
    state = model.init(1)
    for measurement in usual_rounds(20, 20, rng):
        state = model.update(state, measurement)
    for _ in range(30):
        steps = 0.02 * np.exp(0.03 * rng.standard_normal(20))
        steps[rng.integers(20)] *= longer
        state = model.update(state, round_of(32, steps))
        assert seconds_at(model, state, 32) == pytest.approx(0.02, rel=0.025)


@pytest.mark.parametrize("median", [0.0, 1e-9, np.inf, np.nan])
def test_a_median_that_cannot_be_does_no_harm(median):
    model, rng = strategies.adaptive().model, np.random.default_rng(5)
    state = model.init(1)
    for measurement in usual_rounds(80, 20, rng, pauses=0.05):
        state = model.update(state, replace(measurement, median_seconds=np.array([median])))
    assert seconds_at(model, state, 32) == pytest.approx(0.02, rel=0.015)


@pytest.mark.parametrize("seed", range(4))
def test_pauses_of_the_first_rounds_are_no_noise_for_good(seed):
    """Once, noise that had been learnt from pauses explained all later ones."""
    model, rng = strategies.adaptive().model, np.random.default_rng(seed)
    state = model.init(1)
    for measurement in usual_rounds(12, 2, rng, pauses=0.3):
        state = model.update(state, measurement)
    for measurement in usual_rounds(60, 20, rng, pauses=0.05):
        state = model.update(state, measurement)
    assert seconds_at(model, state, 32) == pytest.approx(0.02, rel=0.015)


def test_each_of_two_steps_may_be_a_pause_where_pauses_are_frequent():
    model, rng = strategies.adaptive().model, np.random.default_rng(3)
    for pauses, expected in ((0.0, 0.06), (0.15, 0.02)):
        state = model.init(1)
        for measurement in usual_rounds(80, 5, rng, pauses, longer=3.0):
            state = model.update(model.pool(state, model.record(state)), measurement)
        state = model.update(state, round_of(32, np.array([0.06, 0.0605])))
        assert seconds_at(model, state, 32) == pytest.approx(expected, rel=0.1)


def test_a_pause_that_was_taken_for_a_change_is_found_out_with_the_next_batch_sizes():
    """Each new batch size may have a jump of its own instead, but not one after the other."""
    model, rng = strategies.adaptive().model, np.random.default_rng(4)
    state = model.init(1)
    for measurement in usual_rounds(20, 5, rng):
        state = model.update(state, measurement)
    state = model.update(state, round_of(32, np.array([0.04, 0.04, 0.041])))
    assert seconds_at(model, state, 32) == pytest.approx(0.04, rel=0.05)
    for batch_size in (14, 14, 20, 20, 23, 23, 26, 26, 29, 29):
        steps = 0.0006 * batch_size + 0.001 + 0.0002 * rng.standard_normal(3)
        state = model.update(state, round_of(batch_size, steps))
    assert seconds_at(model, state, 32) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_whose_steps_differ_much_is_followed(seed):
    """A quarter of twenty noisy steps is far below their mean, which is no sign of a pause."""
    model = strategies.adaptive().model
    state, rng = model.init(1), np.random.default_rng(seed)
    for factor, num_steps, num_rounds in ((1.0, 3, 20), (1.0, 20, 5), (1.4, 20, 5)):
        for _ in range(num_rounds):
            steps = 0.1 * factor * np.exp(0.2 * rng.standard_normal(num_steps))
            state = model.update(state, round_of(32, steps))
    assert seconds_at(model, state, 32) == pytest.approx(0.143, rel=0.12)


@pytest.mark.parametrize(("shorter", "factor"), [(0.1, 1.0), (0.199, 2.0), (None, 1.0)])
def test_the_shorter_of_two_steps_shows_whether_the_pace_has_changed(shorter, factor):
    """The mean of two steps has doubled; without the shorter one nobody knows why."""
    model, rng = strategies.adaptive().model, np.random.default_rng(11)
    state = model.init(1)
    for _ in range(20):
        measured = 0.1 * (1 + 0.02 * rng.standard_normal())
        state = model.update(state, Measurement.of([32], [measured], num_steps=[2.0]))
    least = None if shorter is None else [shorter]
    state = model.update(
        state, Measurement.of([32], [0.2], num_steps=[2.0], quartile_seconds=least)
    )
    seconds = model.curves(model.record(state)).seconds(np.array([32.0]))[0]
    assert seconds == pytest.approx(0.1 * factor, rel=0.05)


@pytest.mark.parametrize(("shorter", "factor"), [(0.053, 1.0), (0.07, 1.35)])
def test_the_shorter_of_two_steps_shows_a_pause_at_a_batch_size_that_is_new(shorter, factor):
    """What is not known of the curve there does not make steps of a round differ."""
    model = strategies.adaptive().model
    state = model.init(1)
    for _ in range(20):
        state = model.update(state, Measurement.of([32], [0.1], num_steps=[2.0]))
    expected = model.curves(model.record(state)).seconds(np.array([16.0]))[0]
    measured = Measurement.of([16], [0.072], num_steps=[2.0], quartile_seconds=[shorter])
    state = model.update(state, measured)
    seconds = model.curves(model.record(state)).seconds(np.array([16.0]))[0]
    assert seconds == pytest.approx(expected * factor, rel=0.1)


def test_a_pause_in_the_first_round_is_none_of_the_pace():
    model = strategies.adaptive().model
    measurement = Measurement.of(
        [32, 32], [0.2, 0.1], num_steps=[2, 2], quartile_seconds=[0.1, 0.1]
    )
    seconds = model.curves(model.record(model.update(model.init(2), measurement))).seconds
    assert seconds(np.array([32.0, 32.0])) == pytest.approx([0.1, 0.1], rel=0.05)


@pytest.mark.parametrize("batch_size", [48, 64])
def test_two_pauses_in_a_row_at_a_new_batch_size_are_no_change(batch_size):
    """They differ in length, however little is known of the batch size."""
    model, rng = strategies.adaptive().model, np.random.default_rng(5)
    state = model.init(1)
    for _ in range(60):
        state = model.update(state, round_of(40, 0.1 * (1 + 0.03 * rng.standard_normal(1))))
    for longer in (4.0, 3.0):
        state = model.update(state, round_of(batch_size, [0.1 * batch_size / 40 * longer]))
        assert seconds_at(model, state, 40) == pytest.approx(0.1, rel=0.02)


def test_a_batch_size_that_a_pause_has_hidden_keeps_no_other_from_being_known():
    """It is forgotten, and is not the newest one that was seen: that one stays, however old."""
    model, rng = strategies.adaptive().model, np.random.default_rng(5)
    state = model.init(1)
    for k in range(121):  # Its pace changes each third round, so that batch sizes are soon dropped.
        steps = 0.1 * (1 + k // 3 % 2) * np.exp(0.03 * rng.standard_normal(5))
        state = model.update(state, round_of(40, steps))
    assert model.curves(model.record(state)).life < 100
    steps = 0.12 * np.exp(0.03 * rng.standard_normal(200))
    steps[50] *= 40
    for paused in (steps, [0.12]):
        state = model.update(state, round_of(48, paused))
    curves = model.curves(model.record(state))
    assert curves.seconds(np.array([40.0]))[0] == pytest.approx(0.1, rel=0.02)
    assert curves.deviations(np.array([40.0]))[0] < 0.02
