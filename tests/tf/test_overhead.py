"""What balancing costs, and what is part of that."""

from __future__ import annotations

import time

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.job import overhead
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.observers import Observer


def test_the_time_of_a_decision_is_no_part_of_the_step_behind_it(monkeypatch):
    times, excluded = iter([10.0, 10.5, 20.0, 20.25]), []
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: next(times))
    one = overhead.Overhead(excluded.append)
    for _ in range(2):
        with one.counted():
            pass
    monkeypatch.undo()
    assert excluded == [0.5, 0.25]
    one.begin_round()
    assert one.round_seconds == 0.75


def test_what_is_done_beside_the_training_costs_it_a_core_for_that_long(monkeypatch):
    for cores, seconds in ((1, 0.5), (4, 0.125), (0.25, 2.0)):
        monkeypatch.setattr(overhead, "num_usable_cores", lambda cores=cores: cores)
        one = overhead.Overhead(lambda _: None)
        one.count_beside(0.5)
        one.begin_round()
        assert one.round_seconds == seconds


def test_a_container_that_is_limited_later_costs_more_from_the_next_training_on(monkeypatch):
    one = overhead.Overhead(lambda _: None)
    monkeypatch.setattr(overhead, "num_usable_cores", lambda: 0.25)
    one.restart()
    one.count_beside(0.5)
    one.begin_round()
    assert one.round_seconds == 2.0


class BusyObserver(Observer):
    """Takes 40 ms of processor time for a round."""

    def on_round(self, entry, scores):
        end = time.thread_time() + 0.04
        while time.thread_time() < end:
            pass


def test_what_observers_take_of_the_processor_is_part_of_what_a_decision_costs(monkeypatch):
    monkeypatch.setattr(overhead, "num_usable_cores", lambda: 1)
    controller = Controller(strategies.resolve("dbs", every=10), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    one.log.add(BusyObserver())
    one.position.read_from(IndexStage(4000, seed=None, rank=0, batch_sizes=(4,)))
    one.begin_training()
    one.begin_epoch(0)
    costs = []
    for step in range(1, 301):
        one.end_steps(step)
        costs.append(controller.decision_seconds)
        time.sleep(0.005)
    one.end_training()
    assert max(costs) > 0.02
