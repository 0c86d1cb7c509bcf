"""Yields the samples of one rank, step by step, as far as plans are settled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.sampling import EpochOrder, PlanSchedule, ReadAhead, num_steps, window

_LOGGER = logging.getLogger(__name__)

_WARN_SECONDS = 60.0


class IndexStage:
    """The first stage of a data set: which samples, in which step.

    Training says which epoch is open and how far its plans are settled; iterators, of which
    Keras and users make extra ones, say nothing. Outside of training an iterator gets the epoch
    last opened at once. During training an iterator waits where its next step is not settled.

    Args:
        num_samples: Samples of the data set.
        seed: Shuffle seed, or None for the order of the data.
        rank: Whose windows.
        batch_sizes: The plan to begin with, shape `[size]`.
        block_size: Consecutive samples that shuffling leaves together.
    """

    def __init__(
        self,
        num_samples: int,
        seed: int | None,
        rank: int,
        batch_sizes: tuple[int, ...],
        block_size: int = 1,
    ) -> None:
        self.num_samples = num_samples
        self.num_steps = num_steps(num_samples, sum(batch_sizes))
        self._seed = seed
        self._rank = rank
        self._block_size = block_size
        self._changed = threading.Condition()
        self._schedule = PlanSchedule(batch_sizes)
        self._training = False
        self._epoch = 0
        self._used_up = False

    def begin_training(self, batch_sizes: tuple[int, ...]) -> None:
        """From now on iterators wait for what is settled; epochs may start from 0 again."""
        with self._changed:
            self._schedule = PlanSchedule(batch_sizes)
            self._training = True
            self._epoch = 0
            self._used_up = False

    def open_epoch(self, epoch: int, batch_sizes: tuple[int, ...], settled: int) -> None:
        """Lets iterators read an epoch, whose first `settled` steps have this plan for certain."""
        with self._changed:
            self._schedule.publish(batch_sizes, first=(epoch, 0))
            self._epoch = epoch
            self._used_up = False
        self.settle(settled)

    def settle(self, num_steps: int) -> None:
        """Declares the plans of the first `num_steps` steps of the open epoch final."""
        with self._changed:
            self._schedule.settle((self._epoch, min(num_steps, self.num_steps)))
            self._changed.notify_all()

    def publish(self, batch_sizes: tuple[int, ...]) -> int:
        """Lets a plan hold from the first step of the open epoch that is not settled yet.

        Returns:
            That step; the number of steps if the whole epoch is settled.
        """
        with self._changed:
            first = self._schedule.horizon[1]
            if first < self.num_steps:
                self._schedule.publish(batch_sizes, first=(self._epoch, first))
            return first

    def batch_sizes_in(self, step: int) -> tuple[int, ...]:
        """The plan that holds in a step of the open epoch, by what is known now."""
        with self._changed:
            return self._schedule.batch_sizes_at((self._epoch, step))

    def end_training(self, batch_sizes: tuple[int, ...]) -> None:
        """Wakes iterators that still wait; from now on nobody does."""
        with self._changed:
            self._schedule = PlanSchedule(batch_sizes)
            self._training = False
            self._changed.notify_all()

    def __call__(self) -> Iterator[NDArray[np.int64]]:
        """One pass over an epoch: the sample indices of each step, shape `[count]`."""
        with self._changed:
            # An iterator that starts when all of the open epoch has been handed out is the next
            # epoch's (a repeated data set begins again before training says so).
            epoch = self._epoch + (self._training and self._used_up)
        order = ReadAhead(EpochOrder(self.num_samples, self._seed, epoch, self._block_size))
        for step in range(self.num_steps):
            with self._changed:
                batch_sizes = self._settled((epoch, step))
                if self._training and epoch == self._epoch and step == self.num_steps - 1:
                    self._used_up = True
            part = window(step, self._rank, batch_sizes, self.num_samples)
            yield order.indices(part.start, part.count)

    def _settled(self, position: tuple[int, int]) -> tuple[int, ...]:
        """The plan at a position, as soon as it is settled. The lock is held."""
        waited = 0.0
        while self._training and self._schedule.horizon <= position:
            if not threading.main_thread().is_alive():  # Never keeps a process from ending.
                break
            self._changed.wait(timeout=1.0)
            waited += 1.0
            if waited == _WARN_SECONDS:
                _LOGGER.warning(
                    "the training data set waits for epoch %d to reach step %d. Who reads it "
                    "ahead of training cannot be served: no shuffle and no cache behind "
                    "balancer.dataset, and no callback that reads it before "
                    "DynamicBatchSizeCallback has opened the epoch.",
                    *position,
                )
        return self._schedule.batch_sizes_at(position)
