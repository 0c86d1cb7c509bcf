"""Epochs and steps of a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.job.arguments import whole_number
from hvd_dbs.job.loop import TrainingLoop


class Epoch:
    """One epoch: iterating over it, once, gives this rank's batch of each step.

    It ends after the steps of the epoch, also where the data go on.

    Attributes:
        number: Its number, from 0 on.
    """

    def __init__(self, loop: TrainingLoop, dataset: tf.data.Dataset, number: int) -> None:
        self.number = number
        self._loop, self._dataset = loop, dataset
        self._steps_begun = 0

    def __iter__(self) -> Iterator[Any]:
        if self._steps_begun:
            raise RuntimeError(
                f"Epoch {self.number} is read a second time; its samples are used once. Iterate "
                f"over balancer.epochs(dataset, num_epochs), which gives each epoch."
            )
        steps = range(1, self._loop.position.num_steps_in_epoch + 1)
        for step, batch in zip(steps, self._dataset, strict=False):
            self._steps_begun = step
            yield batch
            self._loop.end_steps(step)

    def end(self) -> None:
        """The epoch is over, also where it was left by `break`. Collective."""
        if self._loop.steps_done < self._steps_begun:
            self._loop.end_steps(self._steps_begun)
        self._loop.end_epoch()


def agreed_epochs(collective: Collective, num_epochs: int, initial_epoch: int) -> range:
    """The numbers of the epochs that all ranks train. Collective.

    Args:
        collective: The job.
        num_epochs: Number of the last epoch, plus 1.
        initial_epoch: Number of the first one.

    Raises:
        TypeError: If a number is no whole number.
        ValueError: On all ranks, if the numbers differ between ranks, or are negative.
    """
    given = {"initial_epoch": initial_epoch, "num_epochs": num_epochs}
    agreement.require_equal(collective, {name: repr(number) for name, number in given.items()})
    # From here on all ranks compute with the same values, so all meet the same error.
    first, last = (whole_number(name, number) for name, number in given.items())
    for name, number in (("initial_epoch", first), ("num_epochs", last)):
        if number < 0:
            raise ValueError(f"{name}={number} is negative. Epochs are counted from 0.")
    return range(first, last)


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
    loop.position.warn_if_over()
    loop.end_training()
