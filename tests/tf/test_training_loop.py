"""What a round tells the brain about this rank, and when it is over."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.passes import NOT_YET
from hvd_dbs.job import overhead
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.sampling import Cursor, SampleCosts
from tests.tf.given_clock import GivenClock


def measured(one, batch_size):
    """What a round would hear now."""
    return one._rounds._report(one._rounds.pace.take(), batch_size, 1).measurement


@pytest.fixture
def loop():
    controller = Controller(strategies.resolve("dbs", every=2), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    one.position.read_from(IndexStage(40, seed=None, rank=0, batch_sizes=(4,)))
    one.begin_training()
    one.begin_epoch(0)
    yield one
    one.end_training()


def test_the_clock_hears_of_what_goes_on_between_steps(loop):
    excluded = []
    loop._rounds.overhead = overhead.Overhead(excluded.append)
    loop.end_steps(1)
    loop.end_steps(2)
    assert len(excluded) == 2 and all(0 < seconds < 60 for seconds in excluded)


def test_steps_that_are_over_are_counted_from_1(loop):
    with pytest.raises(ValueError, match=r"end_steps\(0\) where 0 steps .* start=1"):
        loop.end_steps(0)
    loop.end_steps(1)
    with pytest.raises(ValueError, match=r"end_steps\(1\) where 1 steps"):
        loop.end_steps(1)


def test_a_training_without_a_data_set_has_not_begun():
    one = TrainingLoop(AloneCollective(), Controller(strategies.even(), 4, Bounds.of(1, minimum=1)))
    with pytest.raises(RuntimeError, match="no data set to train on"):
        one.begin_training()
    assert not one.is_training
    one.check_resize(8)


def test_after_an_interruption_the_epoch_that_training_went_on_with_is_a_whole_one():
    one = TrainingLoop(AloneCollective(), Controller(strategies.even(), 4, Bounds.of(1, minimum=1)))
    one.position.read_from(IndexStage(40, seed=None, rank=0, batch_sizes=(4,)))
    one.position.start_at(Cursor(2, ((0, 12),)))
    for num_steps in (7, 10):
        one.begin_training()
        one.begin_epoch(2)
        assert len(list(one.position.stage.begin_pass().steps)) == num_steps
        assert one.position.num_steps_in_epoch == num_steps


def test_the_step_that_runs_now_is_known_with_its_samples():
    controller = Controller(strategies.even(), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    one.position.read_from(IndexStage(11, seed=None, rank=0, batch_sizes=(4,)))
    assert one.samples_under_way == 0
    for steps_in_call in (1, 2):
        one.begin_training(steps_in_call)
        one.begin_epoch(0)
        samples = [one.samples_under_way]
        for step in range(1, 4):
            one.position.advance(step)
            samples.append(one.samples_under_way)
        assert samples == [4, 4, 3, 0]
        one.end_training()
        assert one.samples_under_way == 0


def test_where_samples_differ_in_cost_the_clock_counts_it():
    controller = Controller(strategies.resolve("dbs", every=2), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    given = np.arange(1.0, 41.0)
    stage = IndexStage(40, None, 0, (4,), costs=SampleCosts.of(given, 40))
    one.position.read_from(stage)
    one.begin_training(steps_in_call=4)
    one.begin_epoch(0)
    for step in range(4):
        num_samples, work, _ = one.samples.work()
        one.clock.back(one.clock.ready([num_samples]), [num_samples], work)
        assert int(num_samples) == one.samples_in_step(step) == 4
    expected = given.reshape(10, 4).sum(axis=1)[:4] / given.mean()
    np.testing.assert_allclose(one.clock.drain().num_samples, expected, atol=1e-3)
    one._rounds.pace.clock = GivenClock([1.0, 1.2, 1.1], np.array([3.9, 4.2, 4.05]))
    measurement = measured(one, 4)
    assert measurement.busy_seconds == pytest.approx([1.1], rel=0.03)
    one.end_training()


def test_the_first_steps_of_a_batch_size_are_left_out(loop):
    loop._rounds.pace.clock = GivenClock([np.nan, 9.0, 1.0, 1.2])
    measurement = measured(loop, 4)
    assert measurement.busy_seconds.tolist() == pytest.approx([1.1])


def test_rounds_leave_out_the_first_and_the_partial_step(loop, monkeypatch):
    rounds = []
    monkeypatch.setattr(
        loop._rounds,
        "_start",
        lambda batch_size, is_change: rounds.append(loop.position.steps_done),
    )
    for step in range(1, 4):
        loop.end_steps(step)
    assert rounds == [3]  # Two steps that count, after the first.


def test_a_round_ends_a_step_later_where_the_next_one_begins(loop, monkeypatch):
    """With a decision each step, one is under way at any time."""
    loop._rounds._steps_to_next = 1
    loop._rounds._controller = Controller(
        strategies.resolve("dbs", every=1), 4, Bounds.of(1, minimum=1)
    )
    agreed = []
    monkeypatch.setattr(loop.log, "write", lambda *_: agreed.append(loop.position.steps_done))
    under_way = []
    for step in range(1, 7):
        loop.end_steps(step)
        under_way.append(loop._rounds.are_under_way)
    assert under_way == [False, True, True, True, True, True]
    assert agreed == [3, 4, 5, 6]
    loop.end_training()
    assert len(agreed) == 5 and not loop._rounds.are_under_way


@pytest.mark.parametrize(
    ("strategy", "known"), [("even", [10, 0]), ("observe", [10, 0]), ("lb_bsp_gpu", [2, 1])]
)
def test_data_are_prepared_as_far_as_their_plan_is_certain(strategy, known):
    controller = Controller(strategies.resolve(strategy), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    stage = IndexStage(40, seed=None, rank=0, batch_sizes=(4,))
    one.position.read_from(stage)
    one.begin_training()
    one.begin_epoch(0)
    steps = stage.begin_pass().steps
    before = list(itertools.takewhile(lambda numbers: numbers is not NOT_YET, steps))
    one.end_steps(1)
    after = list(itertools.takewhile(lambda numbers: numbers is not NOT_YET, steps))
    one.end_training()
    assert [len(before), len(after)] == known


def test_ranks_compare_steps_until_some_rank_signals_a_change(monkeypatch):
    controller = Controller(strategies.adaptive(), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    one.position.read_from(IndexStage(400, seed=None, rank=0, batch_sizes=(4,)))
    one.begin_training()
    one.begin_epoch(0)
    one._rounds._steps_to_next = 24
    looked, rounds = [], []
    monkeypatch.setattr(one._rounds.pace, "look", lambda *_: looked.append(one.position.steps_done))
    monkeypatch.setattr(
        one._rounds,
        "_start",
        lambda batch_size, is_change: rounds.append((one.position.steps_done, is_change)),
    )
    for step in range(1, 13):
        if step == 12:
            one.clock.receive_signal(tf.constant(0.25))
        one.end_steps(step)
    assert looked == list(range(1, 12))
    assert rounds == [(12, True)]  # As soon as some rank signals a change.
    one.end_training()
