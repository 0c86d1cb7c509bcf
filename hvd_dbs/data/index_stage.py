"""Yields the samples of one rank, step by step, as far as plans are settled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.data.passes import NOT_YET, Pass
from hvd_dbs.host.beside_training import BesideTraining
from hvd_dbs.sampling import (
    LAYOUTS,
    CostReader,
    CountReader,
    Cursor,
    EpochOrder,
    EpochPart,
    PlanSchedule,
    RankStep,
    Reader,
    SampleCosts,
    merge_intervals,
    num_steps,
)

_LOGGER = logging.getLogger(__name__)

_PATIENCE = 1.0
"""Seconds after which who asks for a step that is not settled is told to ask again."""

_WARN_SECONDS = 60.0
_WARNING = (
    "the training data set waits for epoch %d to reach step %d. Either this rank waits for another "
    "one, which has stopped training or does something else. Or the data set is read too far "
    "ahead: by shuffle or cache downstream of balancer.dataset, or by a callback, which should "
    "read balancer.dataset(source, training=False). A loop of one's own reads "
    "the epochs of balancer.epochs, or calls balancer.loop.begin_epoch before it reads, and "
    "end_steps after each step, or after as many as begin_training was given."
)


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
        layout: "windows" or "contiguous", as in `sampling.LAYOUTS`.
        costs: What plans are shares of, in the windows layout; None: all samples cost the same.

    Attributes:
        is_read: Whether steps have been read in training; to look into it before does not count.
        is_endless: Whether `num_samples` is that of `num_steps` steps, and not of the data.
        on_unwatched: Called where it is read and no training has begun.
    """

    goes_straight_on = False

    def __init__(
        self,
        num_samples: int,
        seed: int | None,
        rank: int,
        batch_sizes: tuple[int, ...],
        block_size: int = 1,
        layout: str = "windows",
        costs: SampleCosts | None = None,
    ) -> None:
        self.num_samples = num_samples
        self._costs = costs
        self._global_batch_size = sum(batch_sizes)
        self.num_steps = num_steps(num_samples, self._global_batch_size)
        self._seed, self._block_size = seed, block_size
        self._rank = rank
        self._layout = LAYOUTS[layout]
        self._changed = threading.Condition()
        self._schedule = PlanSchedule(batch_sizes)
        self.is_read = self.is_endless = False
        self.on_unwatched: Callable[[], None] = lambda: None
        self._training = self._used_up = False
        self._epoch, self._start = 0, Cursor()
        self._generation = 0
        self._beside = BesideTraining()
        self._own_reader: tuple[tuple[object, ...], Reader] | None = None
        self._looked_at: NDArray[np.int64] | None = None

    @property
    def identity(self) -> dict[str, int | None]:
        """What the order of the samples depends on besides the epoch, by name."""
        seed = None if self._seed is None else int(self._seed)
        block = {"block_size": self._block_size, **({"is_endless": 1} if self.is_endless else {})}
        return {"num_samples": self.num_samples, "shuffle_seed": seed, **block}

    @property
    def is_cut_by_cost(self) -> bool:
        """Whether a rank's samples in a step are known only where the step's plan is settled."""
        return self._costs is not None

    def check_start(self, cursor: Cursor) -> None:
        """Raises ValueError if nothing, or something else, is left of the cursor's epoch."""
        if not EpochPart(self.num_samples, cursor.used).num_left:
            raise ValueError(f"no sample is left of epoch {cursor.epoch}; begin with the next one.")

    def start_at(self, cursor: Cursor) -> None:
        """Of the cursor's epoch only what it has not used is read, until that epoch is over.

        Raises:
            ValueError: If it has used positions that this data set does not have, or all.
        """
        self.check_start(cursor)
        with self._changed:
            self._start, self._epoch = cursor, cursor.epoch

    def change_rank(self, rank: int) -> None:
        """From the next training on the windows are another rank's."""
        with self._changed:
            self._rank = rank
            self._generation += 1
            self._changed.notify_all()

    def part(self, epoch: int) -> EpochPart:
        """What is read of an epoch: all of it, unless training continues within it."""
        return EpochPart(self.num_samples, self._start.used_in(epoch))

    def num_steps_in(self, epoch: int) -> int:
        """Steps of what is read of an epoch."""
        return num_steps(self.part(epoch).num_left, self._global_batch_size)

    def cursor_after(self, epoch: int, num_steps: int) -> Cursor:
        """Where training stands after so many steps of an epoch, counted from where it began."""
        part = self.part(epoch)
        if num_steps >= self.num_steps_in(epoch):
            return Cursor(epoch + 1)
        with self._changed:
            batch_sizes = self._schedule.batch_sizes_at((epoch, 0))
        used = [
            stretch
            for start, end in self._layout.used(num_steps, batch_sizes, part.num_left)
            for stretch in part.positions(start, end - start)
        ]
        return Cursor(epoch, merge_intervals([*part.used, *used]))

    def begin_training(self, batch_sizes: tuple[int, ...]) -> None:
        """From now on iterators wait for what is settled; epochs may start from 0 again."""
        with self._changed:
            self._schedule = PlanSchedule(batch_sizes)
            self._training = True
            self._epoch = self._start.epoch
            self._used_up = False

    def resize(self, batch_sizes: tuple[int, ...]) -> None:
        """Epochs that are not open yet have plans of another sum, with no more steps than this."""
        with self._changed:
            self._global_batch_size = sum(batch_sizes)
            if self.is_endless:
                self.num_samples = self.num_steps * self._global_batch_size
            if not self._training:
                self._schedule = PlanSchedule(batch_sizes)

    def open_epoch(self, epoch: int, batch_sizes: tuple[int, ...], settled: int) -> None:
        """Lets iterators read an epoch, whose first `settled` steps have this plan for certain."""
        with self._changed:
            if epoch != self._start.epoch:
                self._start = Cursor()
            self._schedule.publish(batch_sizes, first=(epoch, 0))
            self._epoch = epoch
            self._used_up = False
            self._beside.restart()
        self.settle(settled if self._layout.plans_change_within else self.num_steps_in(epoch))

    def settle(self, num_steps: int) -> None:
        """Declares the plans of the first `num_steps` steps of the open epoch final."""
        with self._changed:
            self._beside.end_step()
            num_steps = min(num_steps, self.num_steps_in(self._epoch))
            self._schedule.settle((self._epoch, num_steps))
            self._changed.notify_all()

    def publish(self, batch_sizes: tuple[int, ...]) -> int:
        """Lets a plan hold from the first step of the open epoch that is not settled yet.

        Returns:
            That step; the number of its steps if the whole open epoch is settled.
        """
        with self._changed:
            first = self._schedule.horizon[1]
            if first < self.num_steps_in(self._epoch):
                self._schedule.publish(batch_sizes, first=(self._epoch, first))
            return first

    def batch_sizes_in(self, step: int) -> tuple[int, ...]:
        """The plan that holds in a step of the open epoch, by what is known now."""
        with self._changed:
            return self._schedule.batch_sizes_at((self._epoch, step))

    @property
    def num_settled(self) -> int:
        """Steps of the open epoch, from its first one on, whose plans are final."""
        with self._changed:
            return self._schedule.horizon[1]

    def rank_step(self, step: int, batch_sizes: tuple[int, ...] | None = None) -> RankStep:
        """What counts of what this rank reads in a step of the open epoch; for one thread.

        Args:
            step: Step of what is read of the epoch.
            batch_sizes: The plan; None: the one that holds there by what is known now.
        """
        given = (self._epoch, self._start, self._rank)
        if self._own_reader is None or self._own_reader[0] != given:
            self._own_reader = given, self._reader(self._epoch, self._rank)
        return self._own_reader[1].rank_step(step, batch_sizes or self.batch_sizes_in(step))

    def end_training(self, batch_sizes: tuple[int, ...]) -> None:
        """Wakes iterators that still wait; from now on nobody does."""
        with self._changed:
            self._schedule = PlanSchedule(batch_sizes)
            self._training = False
            self._start = Cursor()
            self._changed.notify_all()

    def __call__(self) -> Iterator[NDArray[np.int64]]:
        """One pass over an epoch: the sample indices of each step, shape `[count]`."""
        return (numbers for numbers in self.begin_pass().steps if numbers is not NOT_YET)

    @contextmanager
    def looking_at(self, numbers: NDArray[np.int64]) -> Iterator[None]:
        """Within it, iterators get one step of these samples, and training stands where it did."""
        self._looked_at = numbers
        try:
            yield
        finally:
            self._looked_at = None

    def begin_pass(self) -> Pass:
        """Begins to read an epoch, after the last position of it that has been used."""
        if self._looked_at is not None:
            return Pass(0, iter([self._looked_at]), self._global_batch_size)
        if not self._training:
            self.on_unwatched()
        with self._changed:
            # Where all of the open epoch is handed out, a repeated data set begins the next one.
            epoch = self._epoch + (self._training and self._used_up)
            used = self._start.used_in(epoch)
            steps = self._steps(epoch, self._rank, self._generation)
            return Pass(used[-1][1] if used else 0, steps, self._global_batch_size)

    def _steps(self, epoch: int, rank: int, generation: int) -> Iterator[NDArray[np.int64]]:
        step, steps, waited = 0, 1, 0.0
        while step < steps:
            with self._changed:
                is_settled = partial(self._is_settled, (epoch, step))
                has_waited = not is_settled()
                if not self._changed.wait_for(is_settled, _PATIENCE):
                    batch_sizes = None
                elif generation != self._generation:
                    return  # Of a training that was interrupted.
                else:
                    batch_sizes = self._schedule.batch_sizes_at((epoch, step))
                    steps = self.num_steps_in(epoch)  # Certain now that the epoch is open.
                    if step == 0:
                        reader = self._reader(epoch, rank)
                    self.is_read |= self._training
                    if self._training and epoch == self._epoch and step == steps - 1:
                        self._used_up = True
            if batch_sizes is not None:
                if has_waited:
                    self._beside.wait()
                yield reader.samples(step, batch_sizes)
                step, waited = step + 1, 0.0
                continue
            waited += _PATIENCE
            if waited == _WARN_SECONDS:
                _LOGGER.warning(_WARNING, epoch, step)
            yield NOT_YET

    def _reader(self, epoch: int, rank: int) -> Reader:
        """Reads what is read of an epoch."""
        order = EpochOrder(self.num_samples, self._seed, epoch, self._block_size)
        if self._costs is None:
            return CountReader(order, self.part(epoch), rank, self._layout)
        return CostReader(order, self.part(epoch), rank, self._costs)

    def _is_settled(self, position: tuple[int, int]) -> bool:
        """Whether the plan at a position is final, or nobody is there to settle it."""
        if not self._training or self._schedule.horizon > position:
            return True
        return not threading.main_thread().is_alive()  # Never keeps a process from ending.
