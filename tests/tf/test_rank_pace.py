"""When a rank's pace is news, and what the next round hears of it then."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement
from hvd_dbs.ops.step_clock import StepTimes
from hvd_dbs.rank_pace import RankPace
from hvd_dbs.simulator import Scenario
from hvd_dbs.simulator.cluster import Played
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.watch import Watch


class Clock:
    """Shows what it is told next, for steps of 4 samples."""

    def __init__(self):
        self.busy_seconds = []
        self.num_samples = 4.0

    def drain(self):
        busy = np.array(self.busy_seconds, dtype=np.float64)
        self.busy_seconds = []
        work = np.zeros_like(busy) + self.num_samples if busy.size else busy
        return StepTimes(busy, np.zeros_like(busy), work, np.zeros_like(busy))


@pytest.fixture
def pace():
    one = RankPace(Clock())
    one.clock.busy_seconds = [1.0, 1.02, 0.98, 1.0, 1.01]
    assert one.measure(one.take(), 4) == (pytest.approx(1.002), 5)
    return one


@pytest.mark.parametrize(
    ("steps", "is_news"),
    [
        ([1.0, 1.05, 1.05], False),
        ([1.0, 1.3, 1.3], True),
        ([1.0, 1.0, 9.0], False),
        ([1.3, 0.7, 1.0], False),
        ([0.5, 0.5, 0.5], True),
        ([np.nan, 1.0, 1.0], False),
        ([], False),
    ],
)
def test_news_is_what_noise_does_not_explain(pace, steps, is_news):
    pace.clock.busy_seconds = steps
    assert pace.is_news(pace.take()) == is_news


def test_the_next_round_hears_of_the_new_pace_alone(pace):
    pace.clock.busy_seconds = [1.0] * 6 + [3.5, 3.4]
    assert pace.is_news(pace.take())
    pace.clock.busy_seconds = [3.3]
    assert pace.measure(pace.take(), 4) == (pytest.approx(3.4), 3)


def test_without_news_all_steps_of_the_round_count(pace):
    pace.clock.busy_seconds = [1.0, 1.0]
    assert not pace.is_news(pace.take())
    pace.clock.busy_seconds = [1.06]
    assert pace.measure(pace.take(), 4) == (pytest.approx(1.02), 3)


def test_of_a_long_round_the_last_steps_count(pace):
    for seconds in (1.0, 1.02):
        pace.clock.busy_seconds = [seconds] * 3000
        assert not pace.is_news(pace.take())
    assert pace.measure(pace.take(), 4) == (pytest.approx((1096 + 1.02 * 3000) / 4096), 4096)


@pytest.mark.parametrize(
    ("num_samples", "seconds", "is_news"), [(8.0, 1.9, False), (8.0, 4.5, True), (2.0, 0.2, True)]
)
def test_another_batch_size_alone_is_not_news(pace, num_samples, seconds, is_news):
    pace.clock.num_samples = num_samples
    pace.clock.busy_seconds = [seconds] * 3
    assert pace.is_news(pace.take()) == is_news


def test_noisy_ranks_have_less_news(pace):
    pace.clock.busy_seconds = [0.7, 1.3, 0.8, 1.2, 1.0]
    pace.measure(pace.take(), 4)
    pace.clock.busy_seconds = [1.3, 1.3, 1.4]
    assert not pace.is_news(pace.take())


@pytest.mark.parametrize("broken", [[0.0] * 4, [np.nan] * 4, [-1.0] * 4, []])
def test_a_broken_clock_does_not_change_what_is_usual(pace, broken):
    pace.clock.busy_seconds = broken
    pace.measure(pace.take(), 4)
    pace.clock.busy_seconds = [1.0, 1.3, 1.3]
    assert pace.is_news(pace.take())


def test_cut_by_cost_a_step_counts_for_what_it_would_have_taken_at_the_batch_size(pace):
    pace.is_cut_by_cost = True
    work = np.array([3.6, 4.0, 4.4, 4.1, 9.0, 0.0])
    pace.clock.num_samples = work
    # In proportion to work, nearly; the last two steps say nothing about 4 samples.
    pace.clock.busy_seconds = [*(1.5 * (work[:4] / 4) ** 0.9), 7.0, 7.0]
    assert pace.measure(pace.take(), 4) == (pytest.approx(1.5), 4)
    pace.clock.num_samples = np.array([8.0, 8.4, 7.6])
    pace.clock.busy_seconds = [3.0, 3.1, 2.9]
    assert not pace.is_news(pace.take())
    assert pace.measure(pace.take(), 4) == (pytest.approx(3.0 * 0.5**0.9, rel=0.02), 3)
    pace.clock.num_samples = np.array([3.8, 4.2, 4.0])
    pace.clock.busy_seconds = [6.0, 6.1, 6.2]
    assert pace.is_news(pace.take())


def test_a_simulated_job_looks_for_news_as_a_rank_does(pace):
    """The same steps, told to a rank's `RankPace` and to the simulator's `Watch`."""
    rng = np.random.default_rng(0)
    scenario = Scenario(name="one", global_batch_size=4, ranks=(AffineRanks(per_sample_ms=1.0),))
    watch, pace.clock, outcomes = Watch(scenario), Clock(), set()
    pace.__init__(pace.clock)
    for start in range(1, 400, 7):
        factor = rng.choice([1.0, 1.0, 0.6, 1.4])
        steps = rng.normal(1.0, 0.03, 7) * np.where(np.arange(7) >= rng.integers(1, 9), factor, 1.0)
        whole = np.array([scenario.is_measured(start + index) for index in range(7)])
        steps = np.where(whole, steps, np.nan)
        pace.clock.busy_seconds = steps[:6].tolist()
        told = pace.is_news(pace.take())
        watch.look([_played(start, steps[:6])])
        assert watch.has_news == told
        pace.clock.busy_seconds = steps[6:].tolist()
        seconds, num_steps = pace.measure(pace.take(), 4)
        plain = Measurement.of([4], [np.nan], num_steps=[0])
        shown = watch.end_round([_played(start, steps)], plain, np.array([0]))
        if told:
            assert shown.num_steps.tolist() == [num_steps]
            assert shown.busy_seconds == pytest.approx([seconds])
        else:  # Then the cluster's own measurement stands.
            assert np.isnan(shown.busy_seconds[0])
            watch._usual, pace._usual = (pace._usual, pace._usual)
        outcomes.add(told)
    assert outcomes == {True, False}


def _played(start, steps):
    nothing = np.zeros(len(steps))
    rule = StepRule(0.0, 0.0)
    return Played(start, np.array([4]), steps[:, np.newaxis], None, rule, nothing, nothing)
