"""When last steps signal a change, and which jobs look for them."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.change_signal import ExpectedSteps


def expected_steps(spread=0.01, num_ranks=1):
    rounds = 1.0 + spread * np.tile([-1.35, 0.0, 1.35, -0.675, 0.675], 40)[:, np.newaxis]
    told = ExpectedSteps.unknown(num_ranks)
    return told.after(
        np.full(num_ranks, 8.0), np.ones(num_ranks), np.repeat(rounds, num_ranks, 1), 4
    )


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


def test_a_few_steps_do_not_tell_how_much_steps_differ():
    before = expected_steps(0.1)
    after = before.after(np.full(1, 8.0), np.ones(1), np.ones((3, 1)), job_size=4)
    assert before.spread[0] > after.spread[0] > 0.8 * before.spread[0]


def test_where_steps_are_often_held_up_three_far_ones_are_a_change():
    steps = np.ones((100, 1))
    steps[::20] = 2.0
    often = expected_steps().after(np.full(1, 8.0), np.ones(1), steps, job_size=64)
    two, three = np.array([[2.0], [1.0], [2.0]]), np.full((3, 1), 2.0)
    samples = np.full((3, 1), 8.0)
    assert expected_steps().changes(two, samples, job_size=64).any()
    assert not often.changes(two, samples, job_size=64).any()
    assert often.changes(three, samples, job_size=64).all()
    # Among fewer ranks such pairs are rare.
    rarely = expected_steps().after(
        np.full(1, 8.0), np.ones(1), np.append(steps[:1], steps[1:20])[:, None], job_size=1
    )
    assert rarely.changes(two, samples, job_size=1).any()


@pytest.mark.parametrize("round_steps", [[2.5, 1.0], [1.0, 2.5, 1.0], [2.5, 1.0, 2.5]])
def test_pauses_in_a_short_round_make_no_ordinary_step_a_change(round_steps):
    steps = np.array(round_steps)[:, np.newaxis]
    after = expected_steps().after(np.full(1, 8.0), steps.mean(axis=0), steps, job_size=4)
    assert not after.changes(np.ones((3, 1)), np.full((3, 1), 8.0), job_size=4).any()


def test_nothing_is_a_change_before_the_first_round_or_after_an_empty_one():
    steps = np.full((3, 1), 9.0)
    assert not ExpectedSteps.unknown(1).changes(steps, np.full((3, 1), 8.0), job_size=4).any()
    nothing = expected_steps().after(
        np.full(1, 8.0), np.full(1, np.nan), np.full((4, 1), np.nan), 4
    )
    assert nothing.seconds.tolist() == [1.0]
    assert nothing.changes(steps, np.full((3, 1), 8.0), job_size=4).all()


def test_among_more_ranks_a_change_has_to_be_larger():
    """Six deviations are far among 64 ranks, and not among 4,096, one of which is unlucky."""
    expected = expected_steps(spread=0.1)
    steps = np.full((3, 1), 1.6) * expected.seconds
    found = {size: expected.changes(steps, np.full((3, 1), 8.0), size).all() for size in (64, 4096)}
    assert found == {64: True, 4096: False}
    assert expected.changes(1.2 * steps, np.full((3, 1), 8.0), 4096).all()


@pytest.mark.parametrize("num_ranks", [2, 64, 1024])
def test_steady_ranks_signal_a_change_in_fewer_than_one_of_200_steps(num_ranks):
    random = np.random.default_rng(num_ranks)
    samples, num_rounds, false = np.full((3, num_ranks), 8.0), 300, 0
    expected = ExpectedSteps.unknown(num_ranks)
    for _ in range(num_rounds):
        steps = random.normal(1.0, 0.1, (20, num_ranks))
        false += expected.changes(steps[:3], samples, num_ranks).any()
        expected = expected.after(samples[0], steps.mean(axis=0), steps, num_ranks)
    assert false <= 0.005 * 3 * num_rounds
