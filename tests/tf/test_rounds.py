"""What a round of decisions exchanges, what it costs, and when it begins."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.comm.threaded_collective import ThreadedCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.host.hindrance import Hindrance
from hvd_dbs.job import decision, overhead
from hvd_dbs.job.communication import ROW_SIZE, Communication
from hvd_dbs.job.decision import DecisionExchange, Received, Report
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.rank_pace import Pace
from hvd_dbs.job.round_schedule import RoundSchedule
from tests.tf.given_clock import GivenClock


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
            exchanges.append(row)
            return super().allgather(row)

    one = TrainingLoop(Counted(), Controller(strategies.dbs(), 4, Bounds.of(1, minimum=1)))
    one.position.read_from(IndexStage(40, seed=None, rank=0, batch_sizes=(4,)))
    counts = []
    for _ in range(2):
        for _ in range(2):  # A later training of the same ranks knows what the first has shown.
            one.begin_training()
            for epoch in range(2):
                one.begin_epoch(epoch)
                list(one.position.stage.begin_pass().steps)
                one.end_steps(10)
                exchanges.clear()
                one.end_epoch()
                counts.append(sum(len(row) == ROW_SIZE for row in exchanges))
            one.end_training()
        one.change_ranks([Place("here")])
    assert counts == [1, 0, 0, 0] * 2


def test_whatever_rank_0_meets_the_others_get_an_answer(monkeypatch):
    """Else they would wait for its broadcast, and it would have ended its training."""
    answers = []

    class Recorded(AloneCollective):
        def broadcast(self, row):
            answers.append(row.tolist())
            return super().broadcast(row)

    def broken(records):
        raise ZeroDivisionError("on purpose")

    controller = Controller(strategies.dbs(), 4, Bounds.of(1, minimum=1))
    monkeypatch.setattr(controller, "decide", broken)
    one = DecisionExchange(Recorded(), controller, lambda: Report(Measurement.of([4], [1.0])), 1)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        one.finish()
    *_, (status, *others) = answers  # The first round also measures the negotiation.
    assert status == 1 and not any(others)


def test_a_strategy_knows_what_a_round_costs():
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
