"""Where training stands in its data, and where the next one is to go on."""

from __future__ import annotations

import logging

from hvd_dbs.balancing import Controller, Plan
from hvd_dbs.comm.agreement import raise_together
from hvd_dbs.comm.collective import Collective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.ops.step_samples import StepSamples
from hvd_dbs.sampling import Cursor, num_steps

_LOGGER = logging.getLogger(__name__)


class TrainingPosition:
    """The data set that is trained on, the epoch that is open, and its steps so far.

    Args:
        collective: The job.
        controller: Knows the global batch size.
        samples: Knows how many steps of the open epoch the graph has begun.

    Attributes:
        epoch: The epoch that is open, or was last.
        steps_done: Its steps that are over.
        is_in_epoch: Whether an epoch is open.
        start: Where the next training is to go on; None: where `fit` says, or it has begun.
    """

    def __init__(
        self, collective: Collective, controller: Controller, samples: StepSamples
    ) -> None:
        self.epoch = 0
        self.steps_done = 0
        self.is_in_epoch = False
        self.start: Cursor | None = None
        self._collective, self._controller, self._samples = collective, controller, samples
        self._next = Cursor()
        self._stage: IndexStage | None = None
        self._is_reading_checked = False

    @property
    def stage(self) -> IndexStage:
        """The first stage of the data set that is trained on.

        Raises:
            RuntimeError: If there is none.
        """
        if self._stage is None:
            raise RuntimeError(
                f"The balancer has no data set to train on, or one with fewer steps than its "
                f"global_batch_size={self._controller.global_batch_size} needs. Make one with "
                f"balancer.dataset(source), after any resize, and give it to fit; one made with "
                f"training=False is for evaluation."
            )
        return self._stage

    @property
    def start_epoch(self) -> int | None:
        """The epoch in which the next training is to go on; None: where `fit` says."""
        return None if self.start is None else self.start.epoch

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return self.stage.num_steps

    @property
    def num_steps_in_epoch(self) -> int:
        """Steps of the open epoch: fewer where training continues within it."""
        return self.stage.num_steps_in(self.epoch)

    def part_before(self, step: int) -> float:
        """The part of the whole open epoch that comes before a step of what is read of it."""
        left = self.stage.part(self.epoch).num_left / self.stage.num_samples
        return 1 - left * (1 - step / self.num_steps_in_epoch)

    @property
    def num_full_steps(self) -> int:
        """Those of them that have a whole global batch."""
        return self.stage.part(self.epoch).num_left // self._controller.global_batch_size

    @property
    def last_batch_size(self) -> int:
        """This rank's local batch size in the last full step."""
        last_full_step = max(min(self.steps_done, self.num_full_steps) - 1, 0)
        return self.stage.batch_sizes_in(last_full_step)[self._collective.rank]

    def samples_in_step(self, step: int) -> int:
        """Samples of this rank in a step of the epoch; 0 where it has padding samples only."""
        return self.stage.rank_step(step).num_samples

    def publish(self, plan: Plan) -> int:
        """A plan holds from the first step on that is not settled; returns that step."""
        return self.stage.publish(plan.batch_sizes)

    @property
    def cursor(self) -> Cursor:
        """Where training is to go on if it ends here."""
        if self.is_in_epoch:
            # The graph knows of a step before the callback that comes after others does.
            steps_done = max(self.steps_done, self._samples.num_begun)
            return self.stage.cursor_after(self.epoch, steps_done)
        return self.start or self._next

    @property
    def is_new(self) -> bool:
        """Whether no training has begun, here or in the state that training goes on from."""
        return not self.is_in_epoch and (self.start or self._next) == Cursor()

    def check_start(self, cursor: Cursor) -> None:
        """Raises ValueError if training cannot go on at a cursor with this data set."""
        if self._stage is not None:
            self._stage.check_start(cursor)

    def start_at(self, cursor: Cursor) -> None:
        """The next training goes on from there; its first epoch has what the cursor leaves.

        A cursor of a job that has not trained yet leaves the first epoch to `fit`.

        Raises:
            ValueError: If the cursor does not fit the data set.
        """
        self.check_start(cursor)
        if self._stage is not None:
            self._stage.start_at(cursor)
        self.start = cursor if cursor != Cursor() else None
        self._next, self.is_in_epoch = cursor, False

    def read_from(self, stage: IndexStage) -> None:
        """Sets the data set that is trained on.

        Raises:
            ValueError: If training is to go on at a place that it does not have.
        """
        if self.start is not None:
            stage.start_at(self.start)
        self._stage = stage

    def check_reading(self) -> None:
        """Whose data set is trained on is seen once it is read. Collective, once a training.

        Raises:
            ValueError: On all ranks, if gradients are weighted by a data set that is not read.
        """
        if self._is_reading_checked:
            return
        self._is_reading_checked = True
        error: Exception | None = None
        if not self.stage.is_read and self._samples.num_begun > 0:
            error = ValueError(
                "Training does not read the data set that this balancer made last to train on, so "
                "its gradients are weighted by samples of other batches. Train on the data set of "
                "balancer.dataset(source): not on plain data, one made with training=False, one of "
                "another balancer, or one before the last. Steps made so far are made with what "
                "was read."
            )
        raise_together(self._collective, error)

    def check_values(self) -> None:
        """Whether losses had as many values for each sample. Collective.

        Raises:
            ValueError: On all ranks, if gradients are weighted by samples that losses do not have.
        """
        error: Exception | None = None
        if self._samples.take_misfit():
            error = ValueError(
                "A loss has values that belong to no sample: their number was no multiple of this "
                "rank's samples, by which its gradient is weighted. Give the loss a mask or sample "
                "weights instead of leaving values out, or make it with "
                "hvd.global_mean(values, weights). Steps made so far are made with it."
            )
        raise_together(self._collective, error)

    def begin_training(self) -> None:
        """A training begins, whose first epoch is not open yet."""
        self._samples.take_misfit()
        self._is_reading_checked = False
        self.stage.start_at(self.start or Cursor())  # Not where one that was interrupted began.
        self.stage.begin_training(self._controller.batch_sizes)
        self.is_in_epoch = False

    def check_epoch(self, epoch: int) -> None:
        """Checks that training goes on where it is to, and forgets `start`. Collective if set.

        Raises:
            ValueError: On all ranks, if training is to go on in another epoch.
        """
        if self.start is None:
            return
        error: Exception | None = None
        if self.start.epoch != epoch:
            error = ValueError(
                f"training begins with epoch {epoch} but is to go on in epoch "
                f"{self.start.epoch}, {self.start.num_used} samples of which are used. "
                f"Give fit initial_epoch={self.start.epoch}."
            )
        raise_together(self._collective, error)
        self.start = None

    def open_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self.epoch, self.steps_done, self.is_in_epoch = epoch, 0, True

    def advance(self, steps_done: int) -> None:
        """So many steps of the epoch are over.

        Raises:
            ValueError: If they are no more than before.
        """
        if steps_done <= self.steps_done:
            raise ValueError(
                f"end_steps({steps_done}) where {self.steps_done} steps of the epoch were over "
                f"before: gradients would be weighted by the samples of another step. Give it how "
                f"many are over now, as of enumerate(dataset, start=1)."
            )
        self.steps_done = min(steps_done, self.num_steps_in_epoch)

    def close_epoch(self) -> None:
        """The open epoch is over.

        Raises:
            RuntimeError: If gradients were reduced in it, and none of its steps was reported.
        """
        if self.steps_done == 0 and self._samples.num_begun > 0 and self.num_steps_in_epoch > 1:
            raise RuntimeError(
                "The epoch ends, and none of its steps was reported, so all gradients were "
                "weighted by the samples of its first step. Read the epochs of balancer.epochs "
                "(for batch in epoch), or call balancer.loop.end_steps(step) after each step, "
                "counted from 1."
            )
        # A loop that reduces its gradients with weights of its own need not report its steps.
        self.steps_done = self.steps_done or self.num_steps_in_epoch
        self._next, self.is_in_epoch = self.cursor, False

    def warn_if_over(self) -> None:
        """Warns where a training ends before the epoch in which it was to go on."""
        if self.start is not None and self._collective.rank == 0:
            _LOGGER.warning(
                "Nothing is trained: by the state that was loaded training goes on in epoch %d, "
                "and this training ends before it. To go on, load the state and give more epochs, "
                "counted from the first one on; to train from the start, load none "
                "(TrainingStateCallback: restore=False, or an empty folder).",
                self.start.epoch,
            )

    def end_training(self) -> None:
        """The next training begins where its arguments say."""
        self._next, self.start, self.is_in_epoch = self.cursor, None, False
        if self._stage is not None:
            self._stage.end_training(self._controller.batch_sizes)

    def resize(self) -> None:
        """The controller has another global batch size; a data set of too few steps is dropped."""
        stage, size = self._stage, self._controller.global_batch_size
        if stage is not None and (
            stage.is_endless or num_steps(stage.num_samples, size) <= stage.num_steps
        ):
            stage.resize(self._controller.batch_sizes)
        else:  # Keras would not read all of it.
            self._stage = None

    def change_ranks(self, *, keeps_steps: bool) -> None:
        """The job has other ranks; the data set stays if an epoch keeps its number of steps."""
        if not keeps_steps:
            self._stage = None
        elif self._stage is not None:
            self._stage.change_rank(self._collective.rank)
