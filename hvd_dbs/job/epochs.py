"""Epochs and steps of a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_dbs.job.loop import TrainingLoop


class Epoch:
    """One epoch: iterating over it, once, gives this rank's batch of each step.

    Attributes:
        number: Its number, from 0 on.
    """

    def __init__(self, loop: TrainingLoop, dataset: tf.data.Dataset, number: int) -> None:
        self.number = number
        self._loop, self._dataset = loop, dataset
        self._steps_begun = 0

    def __iter__(self) -> Iterator[Any]:
        for step, batch in enumerate(self._dataset, start=1):
            self._steps_begun = step
            yield batch
            self._loop.end_steps(step)

    def end(self) -> None:
        """The epoch is over, also where it was left by `break`. Collective."""
        if self._loop.position.steps_done < self._steps_begun:
            self._loop.end_steps(self._steps_begun)
        self._loop.end_epoch()


def train_epochs(loop: TrainingLoop, dataset: tf.data.Dataset, numbers: range) -> Iterator[Epoch]:
    """One training: see `Balancer.epochs`.

    Nothing is exchanged where it is left: a generator cannot tell `break` from an exception, which
    other ranks may not have, so waiting for them could deadlock. The next training ends it.
    """
    loop.begin_training()
    for number in numbers:
        loop.begin_epoch(number)
        epoch = Epoch(loop, dataset, number)
        yield epoch
        epoch.end()
    loop.end_training()
