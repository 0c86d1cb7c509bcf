"""What checks do with all ranks together."""

from __future__ import annotations

import logging
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.comm import agreement
from hvd_dbs.sampling import step_batch_sizes
from tests.mpi.problems import hvd_collective


def on_last_rank(value, otherwise):
    return value if hvd.rank() == hvd.size() - 1 else otherwise


def shared(text):
    return agreement.allgather_text(hvd_collective(), text)[0]


def meet():
    shared("")


_kept = []


def new_folder():
    """A folder of rank 0, whose name all ranks know. It is gone when rank 0 has ended."""
    if hvd.rank() == 0:
        _kept.append(tempfile.TemporaryDirectory())
    return Path(shared(_kept[-1].name if _kept else ""))


@contextmanager
def shared_folder():
    """A folder that all ranks know, and that is gone when all are done with it."""
    with tempfile.TemporaryDirectory() as mine:
        yield Path(shared(mine))
        meet()


def global_batch(balancer, step, ids):
    """The ids of all ranks in a step, in order, without padding samples."""
    count = balancer.loop.samples_in_step(step)
    row = np.full(2 * balancer.global_batch_size, -1)
    row[:count] = ids.numpy()[:count]
    assert len(ids) == max(count, 1) or count == 0
    rows = hvd_collective().allgather(row)
    position = balancer.loop.position
    num_samples = position.stage.part(position.epoch).num_left
    counts = step_batch_sizes(step, balancer.plan.batch_sizes, num_samples)
    return [i for row, count in zip(rows, counts, strict=True) for i in row[:count].tolist()]


@contextmanager
def optimized_graphs():
    """Within it TensorFlow optimizes graphs, as users have it; else only with all cases."""
    name, before = "disable_meta_optimizer", tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({name: False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before.get(name, False)})


class captured:  # noqa: N801
    """The log records of a logger and those below it."""

    def __init__(self, name):
        self._logger = logging.getLogger(name)
        self._handler = logging.Handler()
        self.records = []
        self._handler.emit = self.records.append

    def __enter__(self):
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.INFO)
        return self.records

    def __exit__(self, *exception):
        self._logger.removeHandler(self._handler)
