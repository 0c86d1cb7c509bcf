"""Samples of each step, counted inside the graph."""

from __future__ import annotations

import tensorflow as tf

from hvd_dbs.ops.step_samples import StepSamples


def test_the_last_step_has_its_own_number():
    samples = StepSamples()
    advance = tf.function(samples.advance)
    for plan in ((3, 8, 5), (2, 4, 0), (1, 7, 7)):
        samples.begin_epoch(*plan)
        expected = [plan[1]] * (plan[0] - 1) + [plan[2]]
        assert [int(advance()) for _ in range(plan[0])] == expected


def test_several_steps_in_one_call():
    samples = StepSamples()

    @tf.function
    def three():
        return [samples.advance() for _ in range(3)]

    samples.begin_epoch(num_steps=6, full=8, last=5)
    assert [int(n) for _ in range(2) for n in three()] == [8, 8, 8, 8, 8, 5]


def test_an_epoch_that_was_cut_short_starts_over():
    samples = StepSamples()
    samples.begin_epoch(num_steps=3, full=8, last=5)
    samples.advance()
    samples.begin_epoch(num_steps=3, full=8, last=5)
    assert [int(samples.advance()) for _ in range(3)] == [8, 8, 5]
