"""When a rank signals a change of pace, and what the next round uses then."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.change_signal import ExpectedSteps
from hvd_dbs.job.rank_pace import RankPace
from hvd_dbs.simulator import Scenario
from hvd_dbs.simulator.cluster import Played
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.watch import Watch
from tests.tf.given_clock import GivenClock


@pytest.fixture
def pace():
    one = RankPace(GivenClock([1.0, 1.02, 0.98, 1.0, 1.01]))
    one.job_size = 4
    assert one.measure(one.take(), 4)[:2] == (pytest.approx(1.002), 5)
    one.expected = expected_steps()
    return one


def expected_steps(seconds=1.0, spread=0.02):
    """Of 4 samples."""
    return ExpectedSteps(*np.array([[4.0], [seconds], [spread], [0.001]]))


def has_changed(pace, steps, num_samples=4.0, steps_at_once=1):
    """Whether a rank tells the others so when it has looked after each of some steps."""
    for first in range(0, len(steps), steps_at_once):
        pace.clock.busy_seconds = [*pace.clock.busy_seconds, *steps[first : first + steps_at_once]]
        pace.clock.num_samples = num_samples
        pace.look(steps_at_once)
    return pace.clock.has_changed


@pytest.mark.parametrize(
    ("steps", "is_change"),
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
@pytest.mark.parametrize("steps_at_once", [1, 2, 5])
def test_a_change_is_what_noise_does_not_explain(pace, steps, is_change, steps_at_once):
    assert has_changed(pace, steps, steps_at_once=steps_at_once) == is_change


def test_the_next_round_hears_of_the_new_pace_alone(pace):
    assert has_changed(pace, [1.0] * 6 + [3.5, 3.4])
    pace.clock.busy_seconds = [3.3]
    steps = pace.take()
    assert not pace.clock.has_changed
    measured = pace.measure(steps, 4)
    assert measured[:2] == (pytest.approx(3.4), 3)
    # Lower quartile, median, whole step, first bucket.
    assert measured[2:6] == pytest.approx((3.3, 3.4, 3.4, 1.7))
    # What waits for data waits for them at any pace.
    assert len(steps.data_seconds) == len(steps.whole_seconds) == 9
    assert not np.isnan(steps.whole_seconds).any()


def test_waiting_for_data_is_a_mean_part_of_the_work(pace):
    """One step in four is late, which a median would not show."""
    pace.clock.busy_seconds = [1.0, 1.0, 1.0, 1.4]
    pace.clock.data_seconds = [0.0, 0.0, 0.0, 0.4]
    assert pace.measure(pace.take(), 4).input_seconds == pytest.approx(0.1)
    pace.clock.busy_seconds, pace.clock.data_seconds = [1.0, 1.0], [np.nan, np.nan]
    assert np.isnan(pace.measure(pace.take(), 4).input_seconds)


def test_without_a_change_all_steps_of_the_round_count_but_pauses(pace):
    assert not has_changed(pace, [1.0, 9.0, 1.0, 1.06])
    assert pace.measure(pace.take(), 4)[:3] == (pytest.approx(1.02), 3, 1.0)


def test_the_first_step_at_a_batch_size_is_no_step_of_its_pace(pace):
    pace.clock.num_samples, pace.clock.busy_seconds = 8.0, [30.0]
    assert pace.measure(pace.take(), 8)[:2] == (pytest.approx(30.0), 0)
    assert not has_changed(pace, [2.0, 2.1, 2.0], 8.0)  # By what 4 samples have taken.
    assert pace.measure(pace.take(), 8)[:2] == (pytest.approx(6.1 / 3), 3)
    pace.clock.num_samples, pace.clock.busy_seconds = 2.0, [30.0, 0.9, 0.5]
    assert pace.measure(pace.take(), 2)[:2] == (pytest.approx(0.5), 1)
    pace.clock.num_samples, pace.clock.busy_seconds = 4.0, [1.0]
    assert pace.measure(pace.take(), 4)[:2] == (pytest.approx(1.0), 1)  # Nothing is tuned again.


def test_a_first_step_that_is_waited_for_is_not_what_steps_take(pace):
    pace.clock.num_samples, pace.clock.busy_seconds = 8.0, [30.0]
    assert np.isnan(pace.measure(pace.take(), 8).step_seconds)


def test_a_change_is_signalled_until_the_next_round(pace):
    """Who has no samples in a last, partial step is not heard in it."""
    assert has_changed(pace, [2.0, 2.0])
    assert has_changed(pace, [2.0, 2.0, 2.3])
    assert pace.measure(pace.take(), 4)[:2] == (pytest.approx(2.06), 5)
    assert has_changed(pace, [4.0, 4.0])
    pace.restart()
    assert not pace.clock.has_changed
    assert pace.measure(pace.take(), 4)[1] == 0


def test_who_is_not_heard_does_not_look(pace):
    pace.clock.sends_signals = False
    assert not has_changed(pace, [1.0, 2.0, 2.0])
    assert pace.measure(pace.take(), 4)[:2] == (pytest.approx(5 / 3), 3)


@pytest.mark.parametrize(
    ("num_samples", "seconds", "is_change"), [(8.0, 1.9, False), (8.0, 4.5, True), (2.0, 0.2, True)]
)
def test_another_batch_size_alone_is_no_change(pace, num_samples, seconds, is_change):
    assert has_changed(pace, [seconds] * 3, num_samples) == is_change


def test_noisy_ranks_signal_fewer_changes(pace):
    pace.expected = expected_steps(spread=0.2)
    assert not has_changed(pace, [1.25, 1.25, 1.25])


def test_before_anything_is_expected_nothing_is_a_change(pace):
    pace.expected = None
    assert not has_changed(pace, [1.0, 1.3, 1.3])


def test_cut_by_cost_a_step_counts_for_what_it_would_have_taken_at_the_batch_size(pace):
    pace.is_cut_by_cost = True
    work = np.array([3.6, 4.0, 4.4, 4.1, 9.0, 0.0])
    # In proportion to work, nearly; the last two steps say nothing about 4 samples.
    pace.clock.busy_seconds = [*(1.5 * (work[:4] / 4) ** 0.9), 7.0, 7.0]
    pace.clock.num_samples = work
    assert pace.measure(pace.take(), 4)[:2] == (pytest.approx(1.5), 4)
    pace.expected = expected_steps(seconds=1.5)
    assert not has_changed(pace, [3.0, 3.1, 2.9], np.array([8.0, 8.4, 7.6]), steps_at_once=3)
    assert pace.measure(pace.take(), 4)[:2] == (pytest.approx(3.0 * 0.5**0.9, rel=0.02), 3)
    assert has_changed(pace, [6.0, 6.1, 6.2], np.array([3.8, 4.2, 4.0]), steps_at_once=3)


def test_cut_by_cost_the_new_pace_counts_whatever_the_work(pace):
    """Steps of before are nearer to the batch size, and say nothing any more."""
    pace.is_cut_by_cost = True
    assert has_changed(pace, [1.0, 1.0, 3.0, 3.0], np.array([4.0, 4.0, 5.4, 5.4]), steps_at_once=4)
    assert pace.measure(pace.take(), 4)[:2] == (pytest.approx(3.0 * (4 / 5.4) ** 0.9), 2)


def test_a_simulated_job_compares_steps_as_a_rank_does():
    """The same steps, told to a rank's `RankPace` and to the simulator's `Watch`."""
    rng = np.random.default_rng(0)
    scenario = Scenario(name="one", global_batch_size=4, ranks=(AffineRanks(per_sample_ms=1.0),))
    watch, pace, outcomes = Watch(scenario, np.array([0])), RankPace(GivenClock()), set()
    watch.expected = pace.expected = expected_steps(spread=0.03)
    for start in range(1, 400, 7):
        factor = rng.choice([1.0, 1.0, 0.6, 1.4])
        steps = rng.normal(1.0, 0.03, 7) * np.where(np.arange(7) >= rng.integers(1, 9), factor, 1.0)
        whole = np.array([scenario.is_measured(start + index) for index in range(7)])
        steps = np.where(whole, steps, np.nan)
        told = has_changed(pace, steps[:6].tolist(), steps_at_once=6)
        watch.look([_played(start, steps[:6])])
        assert watch.has_changed == told
        pace.clock.busy_seconds = [*pace.clock.busy_seconds, *steps[6:].tolist()]
        seconds, num_steps, quartile, median, *_ = pace.measure(pace.take(), 4)
        plain = Measurement.of([4], [np.nan], num_steps=[0])
        shown = watch.end_round([_played(start, steps)], plain)
        if told:
            assert shown.num_steps.tolist() == [num_steps]
            assert shown.busy_seconds == pytest.approx([seconds])
            assert shown.quartile_seconds == pytest.approx([quartile])
            assert shown.median_seconds == pytest.approx([median])
        else:  # Then the cluster's own measurement stands.
            assert np.isnan(shown.busy_seconds[0])
        outcomes.add(told)
    assert outcomes == {True, False}


def _played(start, steps):
    nothing = np.zeros(len(steps))
    rule = StepRule(0.0, 0.0)
    whole = rule, nothing, nothing
    return Played(start, np.array([4]), steps[:, np.newaxis], None, *whole, np.zeros(1, dtype=bool))
