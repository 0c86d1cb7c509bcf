"""What a round tells the brain about this rank."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.cluster.collective import AloneCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.ops.step_clock import StepTimes
from hvd_dbs.training_loop import TrainingLoop


class Told:
    """A clock that shows given busy seconds, for steps of 4 samples."""

    def __init__(self, busy_seconds):
        self.busy_seconds = busy_seconds

    def restart(self):
        pass

    def drain(self):
        busy = np.array(self.busy_seconds)
        return StepTimes(busy, np.zeros_like(busy), np.full_like(busy, 4.0))


@pytest.fixture
def loop():
    controller = Controller(strategies.resolve("dbs", every=2), 4, Bounds.of(1, minimum=1))
    one = TrainingLoop(AloneCollective(), controller)
    one.read_from(IndexStage(40, seed=None, rank=0, batch_sizes=(4,)))
    one.begin_training()
    one.begin_epoch(0)
    yield one
    one.end_training()


def test_the_time_of_a_decision_is_no_part_of_the_step_behind_it(loop):
    loop.clock = Told([1.5, 1.0, 1.0])
    loop._decision_seconds = 0.5
    assert loop._measure().busy_seconds.tolist() == [1.0]


def test_the_first_steps_of_a_batch_size_are_left_out(loop):
    loop.clock = Told([np.nan, 9.0, 1.0, 1.2])
    assert loop._measure().busy_seconds.tolist() == pytest.approx([1.1])


def test_rounds_leave_out_the_first_and_the_partial_step(loop, monkeypatch):
    rounds = []
    monkeypatch.setattr(loop, "_decide", lambda: rounds.append(loop._steps_done))
    monkeypatch.setattr(loop, "_steps_in_round", 0)
    for step in range(1, 4):
        loop.end_steps(step)
    assert rounds == [3]  # Two steps that count, behind the first.
