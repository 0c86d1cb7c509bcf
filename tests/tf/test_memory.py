"""What an epoch and its steps cost in memory."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.sampling import SampleCosts

NUM_SAMPLES = 1_300_000_000
IN_CALL = 20


def test_an_order_of_a_billion_samples_is_never_stored():
    one = IndexStage(NUM_SAMPLES, seed=7, rank=1, batch_sizes=(300, 212))
    tracemalloc.start()
    try:
        steps = one()
        for _ in range(200):
            assert len(next(steps)) == 212
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # A byte a sample would be 1.3 GB.


class Job:
    """All of a training but its model: data, weights, clock, rounds and decisions of one rank."""

    def __init__(self, num_steps, every, by_cost):
        strategy = strategies.resolve("adaptive", every)
        self.controller = Controller(strategy, 4, Bounds.of(1, minimum=1))
        self.num_decisions = 0
        self.loop = TrainingLoop(AloneCollective(), self.controller)
        costs = SampleCosts.of(1 + np.arange(4 * num_steps) % 7, 4 * num_steps) if by_cost else None
        self.stage = IndexStage(4 * num_steps, seed=7, rank=0, batch_sizes=(4,), costs=costs)
        self.loop.position.read_from(self.stage)
        decide = self.controller.decide

        def count(records):
            self.num_decisions += 1
            return decide(records)

        self.controller.decide = count

    @tf.function
    def run_steps(self):
        """What the optimizer does in the graph, but for the reduction."""
        for _ in tf.range(IN_CALL):
            num_samples, work, _ = self.loop.samples.work()
            ready = self.loop.clock.ready([num_samples])
            self.loop.clock.back(ready, [num_samples], work)

    def epoch(self, number):
        """Runs an epoch; returns the bytes that Python and NumPy hold then."""
        self.loop.begin_epoch(number)
        for step, _ in enumerate(self.stage(), start=1):
            if step % IN_CALL == 0:
                self.run_steps()
                self.loop.end_steps(step)
        self.loop.end_epoch()
        # Lets go of the round's steps; of more than 4096 the clock keeps the last.
        pace = self.loop._rounds.pace
        pace.measure(pace.take(), 4)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize(
    ("num_steps", "every", "by_cost"), [(20_000, None, False), (3_000, 40, True)]
)
def test_steps_and_decisions_leave_nothing_behind(num_steps, every, by_cost):
    """100,000 steps with rounds of any length, and some with windows cut by cost.

    A leak grows in each epoch. What a decision replaces for the first time grows once.
    """
    job = Job(num_steps, every, by_cost)
    job.loop.begin_training(IN_CALL)
    try:
        job.epoch(0)
        tracemalloc.start()
        held = [job.epoch(number) for number in range(1, 5)]
    finally:
        tracemalloc.stop()
        job.loop.end_training()
    assert job.num_decisions >= 3  # How many depends on what one costs.
    assert job.loop.samples_in_epoch == 4 * num_steps
    assert min(np.diff(held)) < 40_000  # Less than 2 bytes a step, and the allocator's whims.
