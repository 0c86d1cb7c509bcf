"""Scores and slow events: exact where speeds are known, and silent under noise and fixed costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hvd_dbs.balancing.measurement import typical_seconds
from hvd_dbs.job.scores import RankScores, SlowEvent, scores_of


def run(rounds, size, **options):
    """The last scores, and (round, event) of all that happened."""
    scores, seen = RankScores.of(size, **options), []
    for number, (batch_sizes, busy_seconds) in enumerate(rounds):
        scores, events = scores.after(batch_sizes, busy_seconds)
        seen += [(number, event) for event in events]
    return scores, seen


def test_against_others_is_over_the_median_of_the_other_ranks():
    rounds = 3 * [((32, 64, 32, 32), (0.1, 0.1, 0.2, 0.1))]
    scores = scores_of(4, rounds)
    # Speeds 320, 640, 160, 320.
    assert scores.against_others.tolist() == pytest.approx([1.0, 2.0, 0.5, 1.0])
    # One fast rank makes nobody slow.
    others = scores_of(4, 3 * [((32,) * 4, (0.01, 0.1, 0.1, 0.1))]).against_others
    assert others.tolist() == pytest.approx([10.0, 1.0, 1.0, 1.0])


def test_what_is_not_known_has_no_score():
    scores = scores_of(3, 3 * [((32, 0, 32), (0.1, 0.1, math.nan))])
    assert np.isnan(scores.against_others).all()  # Rank 0 has nobody to be compared with.
    assert scores.against_own_best[0] == 1.0
    assert np.isnan(scores.against_own_best[1:]).all()
    assert np.isnan(RankScores.of(2).against_own_best).all()
    two_rounds = scores_of(1, 2 * [((8,), (0.1,))])
    assert np.isnan(two_rounds.against_own_best).all()  # Fewer than the window.


def test_a_fall_is_one_event_until_the_rank_has_recovered():
    even = (32, 32)
    seconds = [0.1] * 5 + [0.2] * 10 + [0.13] * 5 + [0.1] * 5 + [0.2] * 5
    _, events = run([(even, (0.1, value)) for value in seconds], 2)
    # Two slow rounds of three are the median. 0.13 is above the threshold, and not recovered yet.
    assert events == [
        (6, SlowEvent(1, True, 0.5)),
        (21, SlowEvent(1, False, 1.0)),
        (26, SlowEvent(1, True, 0.5)),
    ]


def test_a_rank_at_the_threshold_is_one_event():
    wave = [0.1 / (0.7 + 0.02 * math.sin(number)) for number in range(200)]
    _, events = run([((32,), (value,)) for value in [0.1] * 5 + wave], 1)
    assert [event.is_slow for _, event in events] == [True]


def test_pauses_of_a_round_are_no_event():
    seconds = [0.1 * (10 if number % 3 == 2 else 1) for number in range(300)]
    assert run([((32,), (value,)) for value in seconds], 1)[1] == []


@pytest.mark.parametrize("fixed", [0.0, 0.3, 0.8])
def test_a_fixed_cost_makes_no_batch_size_a_fall(fixed):
    random = np.random.default_rng(3)
    sizes = random.integers(4, 128, 400)
    seconds = (fixed + (1 - fixed) * sizes / 64) * np.exp(0.03 * random.standard_normal(400))
    rounds = [((size,), (value,)) for size, value in zip(sizes, seconds, strict=True)]
    scores, events = run(rounds, 1)
    assert events == [] and scores.against_own_best[0] > 0.8


def test_a_smaller_batch_is_no_recovery():
    # A rank at half speed gets half of the samples, and is done as soon as before.
    slow = 5 * [((64,), (0.1,))] + 3 * [((64,), (0.2,))] + 20 * [((32,), (0.11,))]
    scores, events = run(slow, 1)
    assert [event.is_slow for _, event in events] == [True] and scores.is_slow.all()
    _, events = run([*slow, *3 * [((32,), (0.055,))]], 1)
    assert [event.is_slow for _, event in events] == [True, False]


def test_what_a_slow_rank_does_is_no_best_of_it():
    slow = 5 * [((64,), (0.1,))] + 3 * [((64,), (0.4,))] + 20 * [((32,), (0.2,))]
    scores, _ = run(slow, 1)
    assert scores.against_own_best[0] == pytest.approx(0.5)  # 64 samples took half of that.


def test_noise_and_pauses_are_no_event():
    random = np.random.default_rng(5)
    steps = 0.1 * np.exp(0.08 * random.standard_normal((18_000, 4)))  # Half an hour.
    steps[random.random(steps.shape) < 0.02] *= 5
    rounds = [
        ((32,) * 4, [typical_seconds(rank) for rank in steps[first : first + 10].T])
        for first in range(0, len(steps), 10)
    ]
    assert run(rounds, 4)[1] == []


def test_rows_of_an_unknown_rank_keep_its_scores():
    rounds = [((32, 32), (0.1, 0.1))] * 3 + [((32, 32), (0.2, math.nan))] * 3
    scores, events = run(rounds, 2)
    assert scores.against_own_best.tolist() == pytest.approx([0.5, 1.0])
    assert [event.rank for _, event in events] == [0]


def test_what_came_before_is_left_as_it_was():
    first = RankScores.of(1)
    second, _ = first.after((32,), (0.1,))
    assert np.isnan(first.against_own_best).all()
    third, _ = second.after((32,), (0.1,))
    fourth = third.after((32,), (0.1,))[0]
    assert np.isnan(third.against_own_best).all() and fourth.against_own_best[0] == 1.0
