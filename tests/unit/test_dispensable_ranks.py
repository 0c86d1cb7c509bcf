"""A job that is faster without its slowest rank says so once, with figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.job.dispensable_ranks import DispensableRank, DropAdvice


def said_of(slow_speed, num_rounds=60):
    """What is said of a job of four ranks that is balanced, one of them at such a speed."""
    speeds = np.array([1.0, 1.0, 1.0, slow_speed])
    bounds = Bounds.of(4, minimum=1)
    controller = Controller(strategies.adaptive(), 128, bounds, num_rows=4)
    advice, said = DropAdvice(), []
    for _ in range(num_rounds):
        samples = controller.plan.samples.astype(float)
        busy = (0.005 + 0.001 * samples) / speeds  # Launching kernels is slow there too.
        found = advice.after(samples, busy, bounds)
        said += [found] if found is not None else []
        controller.decide(controller.observe(Measurement.of(samples, busy)))
    return said


def test_a_rank_at_3_percent_is_dispensable_and_one_at_30_is_kept():
    (found,) = said_of(0.03)
    assert (found.rank, found.num_samples) == (3, 1)
    assert found.seconds == pytest.approx(0.2)  # 6 ms on the others.
    # Three ranks would take 5 + 42.7 ms for 128 samples: less than that bound, and near it.
    assert 0.0477 <= found.seconds_without < 0.05
    assert (
        "the job would be faster without rank 3 on d: it takes 200.0 ms for 1 sample"
        in found.text("abcd")
    )
    assert said_of(0.3) == []


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
    assert DispensableRank.of(np.array(sizes), np.array(seconds), bounds) is None


def test_a_multiple_of_is_the_fewest_samples_too():
    sizes = np.array([48.0, 48.0, 8.0])
    assert DispensableRank.of(sizes, SECONDS, Bounds.of(3, 1, multiple_of=8)).num_samples == 8
    assert DispensableRank.of(sizes, SECONDS, Bounds.of(3, 12, multiple_of=8)).rank == 2


def test_three_rounds_have_to_show_it():
    advice, bounds = DropAdvice(), Bounds.of(3, 1)
    slow, quick = SECONDS, np.array([0.1, 0.1, 0.1])
    rounds = [slow, slow, quick, slow, slow, slow, slow]
    assert [advice.after(SIZES, seconds, bounds) is not None for seconds in rounds] == [
        *[False] * 5,
        True,
        False,
    ]
