"""Samples of each step, counted inside the graph."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import AGAIN, StepSamples


def test_the_last_step_has_its_own_number():
    samples = StepSamples(StepClock())
    advance = tf.function(samples.work)
    for plan in ((3, 8, 5), (2, 4, 0), (1, 7, 7)):
        samples.begin_epoch(*plan)
        expected = [plan[1]] * (plan[0] - 1) + [plan[2]]
        assert [int(advance().num_samples) for _ in range(plan[0])] == expected


def test_several_steps_in_one_call():
    samples = StepSamples(StepClock())

    @tf.function
    def three():
        return [samples.work().num_samples for _ in range(3)]

    samples.begin_epoch(num_steps=6, full=8, last=5)
    assert [int(n) for _ in range(2) for n in three()] == [8, 8, 8, 8, 8, 5]


def test_a_step_that_is_told_may_be_asked_for_any_number_of_times():
    samples = StepSamples(StepClock())
    work = tf.function(samples.work)
    samples.begin_epoch(num_steps=5, full=8, last=5)
    seen = []
    for step, times in enumerate((2, 1, 0, 3, 2)):
        samples.begin_step(step)
        seen.append([tuple(map(float, work()[:2])) for _ in range(times)])
        assert samples.num_begun == (step + 1 if times else step)
    again = (8, AGAIN)
    assert seen == [[(8, 8), again], [(8, 8)], [], [(8, 8), again, again], [(5, 5), (5, AGAIN)]]
    assert samples.total == 8 + 8 + 8 + 5


def test_a_step_after_the_end_of_training_is_an_error():
    samples = StepSamples(StepClock())
    work = tf.function(samples.work)
    samples.begin_epoch(num_steps=3, full=8, last=5)
    work()
    samples.end_training()
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not know how many samples"):
        work()
    assert samples.total == 8
    samples.begin_epoch(num_steps=3, full=7, last=5)
    assert int(work().num_samples) == 7


def test_an_epoch_that_was_cut_short_starts_over():
    samples = StepSamples(StepClock())
    samples.begin_epoch(num_steps=3, full=8, last=5)
    samples.work()
    samples.begin_epoch(num_steps=3, full=8, last=5)
    assert [int(samples.work().num_samples) for _ in range(3)] == [8, 8, 5]


def test_steps_that_are_announced_one_by_one():
    samples = StepSamples(StepClock())

    @tf.function
    def two():
        return [tf.stack([tf.cast(n, tf.float64), w]) for n, w, _ in (advance(), advance())]

    advance = samples.work
    for _ in range(2):
        samples.begin_epoch_announced(num_steps=6)
        samples.announce(np.array([[0, 8, 7.5], [1, 0, 0.0], [2, 5, 9.25]]))
        assert np.array(two()).tolist() == [[8, 7.5], [0, 0]]
        samples.announce(np.array([[1, 0, 0.0], [2, 5, 9.25], [3, 6, 6.0], [4, 1, 0.5]]))
        assert np.array(two()).tolist() == [[5, 9.25], [6, 6]]
        assert samples.total == 19
        with pytest.raises(tf.errors.InvalidArgumentError, match="end_steps after each step"):
            two()
    samples.begin_epoch(num_steps=2, full=8, last=5)  # The next data set has no costs.
    assert np.array(two()).tolist() == [[8, 8], [5, 5]]


def test_a_step_before_any_epoch_is_an_error():
    """Else a fit without DynamicBatchSizeCallback would weigh every gradient by 0."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="DynamicBatchSizeCallback"):
        tf.function(StepSamples(StepClock()).work)()


def test_the_global_batch_of_a_step_may_be_asked_for_before_the_step_counts():
    samples = StepSamples(StepClock())

    @tf.function
    def step():
        before, work = samples.batch(), samples.work()
        return before.num_samples, before.total, work.num_samples, work.total

    for _ in range(2):
        samples.begin_epoch(num_steps=3, full=8, last=0, of_all=(16, 5))
        seen = [tuple(map(int, step())) for _ in range(3)]
        assert seen == [(8, 16, 8, 16)] * 2 + [(0, 5, 0, 5)]
