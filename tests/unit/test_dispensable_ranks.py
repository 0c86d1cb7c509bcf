"""A job that is faster without its slowest ranks says so with figures, or drops them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.job.dispensable_ranks import DispensableRanks, DropDecision


def found_of(slow_speed, num_rounds=100):
    """What is found of a job of four ranks that is balanced, one of them at such a speed."""
    speeds = np.array([1.0, 1.0, 1.0, slow_speed])
    bounds = Bounds.of(4, minimum=1)
    controller = Controller(strategies.adaptive(), 128, bounds, num_rows=4)
    decision, dropped = DropDecision(), []
    for _ in range(num_rounds):
        samples = controller.plan.samples.astype(float)
        busy = (0.005 + 0.001 * samples) / speeds  # Launching kernels is slow there too.
        found = decision.after(samples, busy, bounds, num_steps=1)
        dropped += [found] if found is not None else []
        controller.decide(controller.observe(Measurement.of(samples, busy)))
    return dropped


def test_a_rank_at_3_percent_is_dispensable_and_one_at_30_is_kept():
    found = found_of(0.03)[0]
    assert (found.ranks, found.rank, found.num_samples) == ((3,), 3, 1)
    assert found.seconds == pytest.approx(0.2)  # 6 ms on the others.
    # Three ranks would take 5 + 42.7 ms for 128 samples: less than that bound, and near it.
    assert 0.0477 <= found.seconds_without < 0.05
    assert (
        "the job would be faster without rank 3 on d: it takes 200.0 ms for 1 sample"
        in found.text("abcd")
    )
    assert found_of(0.3) == []


SIZES, SECONDS = np.array([50.0, 49.0, 1.0]), np.array([0.1, 0.1, 0.9])


@pytest.mark.parametrize(
    ("sizes", "seconds", "bounds"),
    [
        (SIZES, SECONDS, Bounds.of(3, 1, [50, 49, None])),  # The others cannot take its samples.
        ([50.0, 48.0, 2.0], SECONDS, Bounds.of(3, 1)),  # It may have fewer.
        (SIZES, [0.1, math.nan, 0.9], Bounds.of(3, 1)),
        (SIZES, [0.1, 0.1, 0.104], Bounds.of(3, 1)),  # Little to gain.
        ([1.0], [0.9], Bounds.of(1, 1)),
    ],
)
def test_a_rank_is_kept_where_nothing_shows_a_gain(sizes, seconds, bounds):
    assert DispensableRanks.of(np.array(sizes), np.array(seconds), bounds) is None


def test_a_multiple_of_is_the_fewest_samples_too():
    sizes = np.array([48.0, 48.0, 8.0])
    assert DispensableRanks.of(sizes, SECONDS, Bounds.of(3, 1, multiple_of=8)).num_samples == 8
    assert DispensableRanks.of(sizes, SECONDS, Bounds.of(3, 12, multiple_of=8)).rank == 2


FOUR_SIZES = np.array([50.0, 48.0, 1.0, 1.0])
FOUR_SECONDS = np.array([0.1, 0.1, 0.8, 0.9])
FOUR = Bounds.of(4, 1)


def ranks_of(*arguments, sizes=FOUR_SIZES, seconds=FOUR_SECONDS, bounds=FOUR):
    found = DispensableRanks.of(np.array(sizes), np.array(seconds), bounds, *arguments)
    return () if found is None else found.ranks


def test_all_ranks_that_are_too_slow_are_named():
    """Without the slowest alone the job would be no faster."""
    assert ranks_of() == (2, 3)
    found = DispensableRanks.of(FOUR_SIZES, FOUR_SECONDS, FOUR)
    assert found.seconds == 0.8  # Of the faster one.
    assert found.seconds_without == pytest.approx(0.1 * 100 / 98)
    assert found.text("abcc").startswith(
        "the job would be faster without c (ranks 2, 3): rank 2 takes 800.0 ms for 1 sample"
    )


def test_ranks_leave_with_their_hosts_and_only_if_that_pays():
    assert ranks_of("abcc") == (2, 3)
    slow = np.array([0.1, 0.1, 0.1, 0.9])
    assert ranks_of(seconds=slow, sizes=[33, 33, 33, 1]) == (3,)
    # What is left would take 0.1 s for a third of the samples.
    assert ranks_of("abcc", seconds=slow, sizes=[33, 33, 33, 1]) == (2, 3)
    assert ranks_of("aaab", seconds=slow, sizes=[33, 33, 33, 1]) == (3,)
    # And here 0.45 s instead of 0.4 s.
    assert ranks_of("abbb", seconds=[0.15, 0.15, 0.15, 0.4], sizes=[33, 33, 33, 1]) == ()
    assert ranks_of("abbc", seconds=[0.15, 0.15, 0.15, 0.4], sizes=[33, 33, 33, 1]) == (3,)


def test_enough_ranks_stay():
    assert ranks_of("abcd", 2) == (2, 3)
    assert ranks_of("abcd", 3) == (3,)  # A gain, if a smaller one.
    assert ranks_of("abcd", 4) == ()
    assert ranks_of("aaaa") == ()


def test_a_rank_on_whose_host_the_slowest_has_more_than_its_fewest_samples_stays():
    assert ranks_of("abcc", sizes=[50, 47, 1, 2]) == ()
    assert ranks_of("abcc", sizes=[50, 47, 2, 1]) == (2, 3)  # Rank 3 is the slower one.


def rounds_until_drop(rounds, hosts="abc", min_left=1):
    """Rounds after which the last rank is dropped, each given by its seconds and steps."""
    decision = DropDecision(hosts, min_left)
    return [
        number
        for number, (seconds, num_steps) in enumerate(rounds, start=1)
        if decision.after(SIZES, np.array([0.1, 0.1, seconds]), Bounds.of(3, 1), num_steps)
    ]


def test_a_rank_is_dropped_when_it_has_cost_as_much_as_a_change_of_ranks():
    """It costs 0.8 s a step."""
    assert rounds_until_drop([(0.9, 4)] * 5) == [4, 5]  # 12.8 s.
    assert rounds_until_drop([(0.9, 1)] * 14) == [13, 14]
    assert rounds_until_drop([(0.9, 100)] * 3) == [3]  # One round shows nothing, however long.
    assert rounds_until_drop([(0.9, 100)] * 9, min_left=3) == []


def test_a_rank_that_has_recovered_is_not_dropped_for_what_was():
    assert rounds_until_drop([(0.9, 100), (0.9, 100), (0.1, 1), (0.9, 100), (0.9, 100)]) == []
    assert rounds_until_drop([(0.9, 4)] * 3 + [(math.nan, 4)] + [(0.9, 4)] * 3) == []
