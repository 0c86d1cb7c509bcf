"""What a round tells the brain about this rank, and when it is over."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.comm.threaded_collective import ThreadedCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.passes import NOT_YET
from hvd_dbs.host.hindrance import Hindrance
from hvd_dbs.job import decision, overhead
from hvd_dbs.job.communication import Communication
from hvd_dbs.job.decision import DecisionExchange, Received, Report
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.rank_pace import Pace
from hvd_dbs.job.round_schedule import RoundSchedule
from hvd_dbs.sampling import SampleCosts
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


@pytest.mark.parametrize(("steps_to_next", "first"), [(24, 4), (40, 6)])
def test_ranks_compare_steps_after_the_first_part_of_a_round(monkeypatch, steps_to_next, first):
    controller = Controller(strategies.adaptive(), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    one.position.read_from(IndexStage(400, seed=None, rank=0, batch_sizes=(4,)))
    one.begin_training()
    one.begin_epoch(0)
    one._rounds._steps_to_next = steps_to_next
    looked, rounds = [], []
    monkeypatch.setattr(one._rounds.pace, "look", lambda *_: looked.append(one.position.steps_done))
    monkeypatch.setattr(
        one._rounds,
        "_start",
        lambda batch_size, is_change: rounds.append((one.position.steps_done, is_change)),
    )
    for step in range(1, 13):  # The first step of the epoch is not measured.
        if step == 12:
            one.clock.receive_signal(tf.constant(0.25))
        one.end_steps(step)
    assert looked == list(range(first, 12))
    assert rounds == [(12, True)]  # As soon as some rank signals a change.
    one.end_training()


class Threaded(ThreadedCollective):
    """A job of one rank whose exchanges are made in a thread of their own."""

    def __init__(self):
        super().__init__(0, 1)

    def _allgather(self, row):
        return row[np.newaxis]

    def _broadcast(self, row):
        return row


def test_a_round_tells_what_it_took_beside_the_training():
    def measure():
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return Report(Measurement.of([4], [1.0]))

    for collective, beside in ((Threaded(), True), (AloneCollective(), False)):
        controller = Controller(strategies.dbs(), 4, Bounds.of(1, minimum=1))
        one = DecisionExchange(collective, controller, measure, num_steps=1)
        one.finish()
        collective.close()
        assert one.seconds_beside >= 0.01 if beside else one.seconds_beside == 0


def test_rounds_count_what_they_take_beside_the_training(monkeypatch):
    def measure(steps, batch_size):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return Pace(1.0, 1, 1.0, 1.0, 1.0, 0.5)

    monkeypatch.setattr(overhead, "num_usable_cores", lambda: 1)
    collective = Threaded()
    controller = Controller(strategies.resolve("dbs", every=1), 4, Bounds.of(1, minimum=1))
    rounds = RoundSchedule(collective, controller, GivenClock([1.0]))
    monkeypatch.setattr(rounds.pace, "measure", measure)
    rounds.begin_training()
    rounds.end_steps(1, 1, 4)
    collective.start(lambda _: None).result()  # Nobody waits for the round in its own thread.
    rounds.end_steps(1, 0, 4)
    rounds.overhead.begin_round()
    rounds.end_training()
    collective.close()
    assert rounds.overhead.round_seconds >= 0.05


@pytest.mark.parametrize(("busy_seconds", "waited"), [([9.0, 1.0], 0.005), ([0.01], 0.0005)])
def test_a_round_beside_the_training_lets_the_next_step_begin_first(
    monkeypatch, busy_seconds, waited
):
    sleeps = []
    monkeypatch.setattr(decision.time, "sleep", sleeps.append)
    collective = Threaded()
    controller = Controller(strategies.resolve("dbs", every=1), 4, Bounds.of(1, minimum=1))
    rounds = RoundSchedule(collective, controller, GivenClock(busy_seconds))
    rounds.decide(4)  # Waited for, so it begins at once.
    assert sleeps == []
    rounds.pace.clock.busy_seconds = busy_seconds
    rounds.end_steps(1, 1, 4)
    rounds.finish()
    collective.close()
    assert sleeps == [pytest.approx(waited)]


def test_only_the_first_round_of_the_ranks_exchanges_more_than_its_rows():
    """Between epochs too: there the ranks wait for it."""
    exchanges = []

    class Counted(AloneCollective):
        def allgather(self, row):
            exchanges.append(len(row))
            return super().allgather(row)

    controller = Controller(strategies.dbs(), 4, Bounds.of(1, minimum=1))
    rounds = RoundSchedule(Counted(), controller, GivenClock([1.0]))
    counts = []
    for _ in range(2):
        for _ in range(2):  # A later training of the same ranks knows what the first has shown.
            rounds.begin_training()
            for _ in range(2):
                rounds.decide(4)
                counts.append(len(exchanges))
                exchanges.clear()
            rounds.end_training()
        rounds.change_ranks()
    assert counts[0] == counts[4] > 1
    assert counts[1:4] == counts[5:] == [1, 1, 1]


def test_a_strategy_knows_what_a_round_costs(loop):
    costs = []
    for cost in (0.0, 0.25):
        controller = Controller(strategies.adaptive(), 4, Bounds.of(1, minimum=1))
        told = Report(Measurement.of([4], [1.0]), cost)
        agreed = DecisionExchange(
            AloneCollective(), controller, lambda told=told: told, num_steps=1
        ).finish()
        costs.append((controller.decision_seconds, agreed.steps_to_next))
    (nothing, soon), (quarter, later) = costs
    assert 0 < nothing < quarter == 0.25
    assert soon < later


def test_the_busiest_rank_says_what_a_whole_step_takes():
    """The others may tell of steps before its pace has changed."""
    rows = np.array(
        [
            Report(Measurement.of([4], [busy]), step_seconds=step).row
            for busy, step in ((0.1, 0.2), (0.8, 0.9), (np.nan, np.nan))
        ]
    )
    received = Received.of(rows, Communication())
    assert received.step_seconds == 0.9
    np.testing.assert_array_equal(received.busy_seconds, [0.1, 0.8, np.nan])
    assert np.isnan(Received.of(rows[2:], Communication()).step_seconds)


def test_what_hinders_a_rank_is_known_to_rank_0():
    rows = [
        Report(
            Measurement.of([4], [1.0], quartile_seconds=[0.5]),
            input_seconds=0.1 * rank,
            hindrance=Hindrance(throttled_share=0.2 * rank, page_faults=7.0 * rank),
        ).row
        for rank in range(2)
    ]
    received = Received.of(np.array(rows), Communication())
    assert received.input_seconds.tolist() == [0.0, 0.1]
    assert received.throttled_share.tolist() == [0.0, 0.2]
    assert received.page_faults.tolist() == [0.0, 7.0]
    assert received.quartile_seconds.tolist() == [0.5, 0.5]
