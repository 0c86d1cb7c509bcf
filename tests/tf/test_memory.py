"""What an epoch and its steps cost in memory."""

from __future__ import annotations

import gc
import tracemalloc

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.cluster.collective import AloneCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.training_loop import TrainingLoop

NUM_SAMPLES = 1_300_000_000


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


def test_steps_leave_nothing_behind():
    """Index stage and training loop, 100,000 steps without decisions."""
    controller = Controller(strategies.resolve("even", every=None), 4, Bounds.of(1, minimum=1))
    loop = TrainingLoop(AloneCollective(), controller)
    one = IndexStage(4 * 33_334, seed=7, rank=0, batch_sizes=(4,))
    loop.read_from(one)

    def epoch(number):
        loop.begin_epoch(number)
        for step, _ in enumerate(one()):
            loop.end_steps(step + 1)
        loop.end_epoch()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    loop.begin_training()
    tracemalloc.start()
    try:
        sizes = [epoch(number) for number in range(3)]
    finally:
        tracemalloc.stop()
        loop.end_training()
    assert sizes[2] - sizes[1] < 20_000  # Less than half a byte a step.
