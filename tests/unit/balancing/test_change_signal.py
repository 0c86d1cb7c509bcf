"""When last steps signal a change, and which jobs look for them."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement, strategies
from hvd_dbs.balancing.change_signal import ExpectedSteps
from tests.unit.balancing.rounds import round_of


def expected_steps(spread=0.01, num_ranks=1, pause_rate=0.001):
    """Of 8 samples in a second."""
    return ExpectedSteps(*np.outer([8.0, 1.0, spread, pause_rate], np.ones(num_ranks)))


def learnt(*rounds, num_ranks=1):
    """What `adaptive` expects after rounds with 8 samples, whose steps are given."""
    model = strategies.adaptive().model
    state = model.init(num_ranks)
    for steps in rounds:
        state = model.update(state, round_of(8, steps))
    return model.expected_steps(state)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([1.0, 1.0, 1.0], []),
        ([1.0, 1.19, 1.19], []),
        ([1.0, 1.21, 1.21], [1, 2]),
        ([0.79, 1.0, 0.79], [0, 2]),
        ([1.0, 50.0, 1.0], []),
        ([0.5, 2.0, 1.0], []),
        ([np.nan, 2.0, 2.0], [1, 2]),
        ([np.nan, np.nan, 2.0], []),
    ],
)
def test_two_far_steps_on_the_same_side_are_a_change(steps, expected):
    changes = expected_steps().changes(
        np.array(steps)[:, np.newaxis], np.full((3, 1), 8.0), job_size=4
    )
    assert np.flatnonzero(changes[:, 0]).tolist() == expected


def test_each_rank_is_judged_by_its_own_steps():
    steps = np.array([[1.0, 2.0, 0.5], [1.0, 2.0, 0.5], [1.0, 1.0, 1.0]])
    changes = expected_steps(num_ranks=3).changes(steps, np.full((3, 3), 8.0), job_size=4)
    assert changes.any(axis=0).tolist() == [False, True, True]


def test_what_is_far_depends_on_how_much_steps_differ():
    steps = np.full((3, 1), 1.3)
    assert expected_steps(0.01).changes(steps, np.full((3, 1), 8.0), job_size=4).any()
    assert not expected_steps(0.1).changes(steps, np.full((3, 1), 8.0), job_size=4).any()


@pytest.mark.parametrize("num_samples", [8.0, 6.0, 16.0])
def test_steps_within_the_band_are_no_change(num_samples):
    low, high = expected_steps().band(np.array([num_samples]), job_size=4)
    assert 0 < low[0] < high[0]
    for seconds, expected in ((low * 1.01, False), (low * 0.99, True)):
        steps = np.tile(seconds, (3, 1))
        changes = expected_steps().changes(steps, np.full((3, 1), num_samples), job_size=4)
        assert changes.any() == expected
    for seconds, expected in ((high * 0.99, False), (high * 1.01, True)):
        steps = np.tile(seconds, (3, 1))
        changes = expected_steps().changes(steps, np.full((3, 1), num_samples), job_size=4)
        assert changes.any() == expected


def test_where_steps_are_often_held_up_three_far_ones_are_a_change():
    often, rarely = expected_steps(pause_rate=0.05), expected_steps(pause_rate=0.001)
    two, three = np.array([[2.0], [1.0], [2.0]]), np.full((3, 1), 2.0)
    samples = np.full((3, 1), 8.0)
    assert rarely.changes(two, samples, job_size=64).any()
    assert not often.changes(two, samples, job_size=64).any()
    assert often.changes(three, samples, job_size=64).all()
    # Among fewer ranks such pairs are rarer.
    assert expected_steps(pause_rate=0.02).changes(two, samples, job_size=4).any()


def test_the_model_learns_how_often_steps_are_held_up():
    quiet, paused = np.ones(20), np.append(np.ones(19), 3.0)
    assert learnt(*[quiet] * 20).pause_rate < 0.002 < 0.03 < learnt(*[paused] * 20).pause_rate


def test_the_model_learns_how_much_steps_differ():
    random = np.random.default_rng(0)
    quiet, noisy = (random.normal(1.0, spread, (12, 20)) for spread in (0.01, 0.15))
    assert learnt(*quiet).spread < 0.02 < 0.1 < learnt(*noisy).spread < 0.2


@pytest.mark.parametrize("round_steps", [[2.5, 1.0], [1.0, 2.5, 1.0], [2.5, 1.0, 2.5]])
def test_pauses_in_a_short_round_make_no_ordinary_step_a_change(round_steps):
    after = learnt(np.ones(20), np.ones(20), np.array(round_steps))
    assert not after.changes(np.ones((3, 1)), np.full((3, 1), 8.0), job_size=4).any()


def test_after_a_change_the_new_pace_is_expected():
    after = learnt(*[np.ones(20)] * 3, *[np.full(3, 1.5)] * 3)
    assert after.seconds == pytest.approx(1.5, rel=0.02)


def test_nothing_is_a_change_before_the_first_round_or_after_an_empty_one():
    steps, samples = np.full((3, 1), 9.0), np.full((3, 1), 8.0)
    assert not learnt().changes(steps, samples, job_size=4).any()
    nothing = learnt(np.ones(20), np.full(4, np.nan))
    assert nothing.seconds == pytest.approx(1.0)
    assert nothing.changes(steps, samples, job_size=4).all()


def test_a_first_step_that_tunes_kernels_is_not_what_is_expected():
    model = strategies.adaptive().model
    state = model.init(1)
    for _ in range(3):
        state = model.update(state, round_of(8, np.ones(20)))
    state = model.update(state, Measurement.of([16], [40.0], num_steps=[0]))
    expected = model.expected_steps(state)
    assert expected.num_samples == 8
    usual, samples = np.full((3, 1), 1.9), np.full((3, 1), 16.0)
    assert not expected.changes(usual, samples, job_size=4).any()


def test_without_a_model_that_says_so_the_last_round_does():
    steps = np.append(np.full(10, 1.0), np.linspace(0.9, 1.1, 9))
    expected = ExpectedSteps.by_last_round(round_of(8, np.append(steps, 5.0)))
    assert (expected.num_samples, expected.seconds) == (8, pytest.approx(1.0, rel=0.02))
    assert 0.02 < expected.spread < 0.1
    for useless in (Measurement.of([8], [np.nan]), Measurement.of([8], [40.0], num_steps=[0])):
        nothing = ExpectedSteps.by_last_round(useless)
        far = np.full((3, 1), 9.0)
        assert not nothing.changes(far, np.full((3, 1), 8.0), job_size=4).any()


def test_among_more_ranks_a_change_has_to_be_larger():
    """Six deviations are far among 64 ranks, and not among 4,096, one of which is unlucky."""
    expected = expected_steps(spread=0.1)
    steps = np.full((3, 1), 1.6) * expected.seconds
    found = {size: expected.changes(steps, np.full((3, 1), 8.0), size).all() for size in (64, 4096)}
    assert found == {64: True, 4096: False}
    assert expected.changes(1.2 * steps, np.full((3, 1), 8.0), 4096).all()


@pytest.mark.parametrize("num_ranks", [2, 64, 1024])
def test_steady_ranks_signal_a_change_in_fewer_than_one_of_200_steps(num_ranks):
    random, model = np.random.default_rng(num_ranks), strategies.adaptive().model
    samples, num_rounds, false = np.full((3, num_ranks), 8.0), 150, 0
    state = model.init(num_ranks)
    for _ in range(num_rounds):
        steps = random.normal(1.0, 0.1, (20, num_ranks))
        expected = model.expected_steps(state)
        false += expected.changes(steps[:3], samples, num_ranks).any()
        state = model.update(state, round_of(8, steps))
    assert false <= 0.005 * 3 * num_rounds
