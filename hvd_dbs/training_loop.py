"""Where training stands, and the plan that holds there: what callbacks and optimizers drive."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_dbs.balancing import Controller, Plan
from hvd_dbs.cluster.agreement import raise_together
from hvd_dbs.cluster.collective import Collective
from hvd_dbs.cluster.decision import Agreed
from hvd_dbs.data.evaluation_stage import Evaluation
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.decision_rounds import DecisionRounds
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import StepWork
from hvd_dbs.sampling import Cursor, num_steps
from hvd_dbs.step_shares import StepShares

_LOGGER = logging.getLogger(__name__)


class TrainingLoop:
    """Epochs, steps and rounds of a running job.

    Every rank calls the same methods in the same order; those that decide are collective.

    Args:
        collective: The job.
        controller: This rank's controller.

    Attributes:
        clock: This rank's clock.
        followers: What is called with each new global batch size.
    """

    def __init__(self, collective: Collective, controller: Controller) -> None:
        self.clock = StepClock()
        self.evaluation = Evaluation()
        self._collective = collective
        self._controller = controller
        self._shares = StepShares()
        self._rounds = DecisionRounds(collective, controller, self.clock)
        self._agreed_plan = controller.plan
        self._index_stage: IndexStage | None = None
        self._start: Cursor | None = None
        self._next = Cursor()
        self._epoch_is_open = False
        self._epoch = 0
        self._steps_done = 0
        self._steps_in_call = 1
        self._warnings: set[str] = set()
        self._is_training = False
        self._resize_to: int | None = None
        self.followers: list[Callable[[int], None]] = []
        with tf.init_scope(), tf.device("CPU"):
            self._global_batch_size = tf.Variable(controller.global_batch_size, dtype=tf.int64)

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return self._stage.num_steps

    @property
    def is_read(self) -> bool:
        """Whether any training has read the data set that was made last."""
        return self._stage.is_read

    @property
    def num_steps_in_epoch(self) -> int:
        """Steps of the open epoch: fewer where training goes on in the midst of it."""
        return self._stage.num_steps_in(self._epoch)

    @property
    def heeds_news(self) -> bool:
        """Whether it matters what ranks tell each other with their gradients."""
        return self._rounds.leaves_cadence

    @property
    def steps_ahead(self) -> int:
        """Steps behind the one under way whose data are prepared, where plans change in mid-epoch.

        Between two trainings those of the last one.
        """
        return self._rounds.steps_ahead

    @property
    def steps_done(self) -> int:
        """Steps of the open epoch, or of the last one, that are over."""
        return self._steps_done

    @property
    def start(self) -> Cursor | None:
        """Where the next training is to go on; None: where `fit` says, or it does already."""
        return self._start

    @property
    def cursor(self) -> Cursor:
        """Where training stands: where it is to go on if it ends here."""
        if self._epoch_is_open:
            # The graph knows of a step before the callback that comes behind others does.
            steps_done = max(self._steps_done, self._shares.samples.num_steps)
            return self._stage.cursor_after(self._epoch, steps_done)
        return self._start or self._next

    def check_start(self, cursor: Cursor) -> None:
        """Raises ValueError if training cannot go on at a cursor with this data set."""
        if self._index_stage is not None:
            self._index_stage.check_start(cursor)

    def start_at(self, cursor: Cursor) -> None:
        """The next training goes on from there; its first epoch has what the cursor leaves.

        A cursor of a job that has not trained yet leaves the first epoch to `fit`.

        Raises:
            ValueError: If the cursor does not fit the data set.
        """
        self.check_start(cursor)
        if self._index_stage is not None:
            self._index_stage.start_at(cursor)
        self._start = cursor if cursor != Cursor() else None
        self._next, self._epoch_is_open = cursor, False

    def read_from(self, index_stage: IndexStage) -> None:
        """Sets the data set that is trained on.

        Raises:
            ValueError: If training is to go on at a place that it does not have.
        """
        if self._start is not None:
            index_stage.start_at(self._start)
        self._index_stage = index_stage
        self._rounds.pace.is_cut_by_cost = index_stage.is_cut_by_cost

    @property
    def agreed_plan(self) -> Plan:
        """The plan that all ranks know; rank 0's controller may know of a newer one."""
        return self._agreed_plan if self._is_training else self._controller.plan

    def begin_training(self, steps_in_call: int = 1) -> None:
        """A `fit` begins, which runs so many steps between two calls of `end_steps`."""
        self._finish_round()  # Of a fit that was interrupted.
        self.finish_resize()
        self._is_training = True
        self._steps_in_call = steps_in_call
        self._rounds.begin_training()
        self._agreed_plan = self._controller.plan
        self._stage.begin_training(self._controller.plan.batch_sizes)
        self._epoch_is_open = False

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins with the plan last decided on. Collective where a round is under way.

        Raises:
            ValueError: On all ranks, if training is to go on in another epoch.
        """
        self._go_on_in(epoch)
        self._finish_round()
        self.finish_resize()
        self._epoch, self._steps_done = epoch, 0
        self._epoch_is_open = True
        batch_sizes = self._controller.plan.batch_sizes
        if not self._rounds.are_within_epochs:
            self.clock.drain()
        self.clock.restart()
        settled = self._ahead if self._rounds.are_within_epochs else self.num_steps
        self._stage.open_epoch(epoch, batch_sizes, settled)
        self._shares.begin_epoch(self._stage, self.num_steps_in_epoch, batch_sizes)
        self._shares.tell(0, self._ahead)

    def begin_steps(self) -> None:
        """The data of the next step are about to be asked for.

        Who does not say so has them asked for at the end of the step before.
        """
        if self._rounds.are_within_epochs:
            self.clock.ask()

    def end_steps(self, steps_done: int) -> None:
        """So many steps of the epoch are over. Collective where a round is over too."""
        before = self._steps_done
        self._steps_done = min(steps_done, self.num_steps_in_epoch)
        if self._rounds.are_within_epochs:
            # The first step of an epoch is not measured, on any rank, nor is a partial one.
            measured = min(steps_done, self._num_full_steps) - max(before, 1)
            self._apply(
                self._rounds.end_steps(
                    self._steps_done - before, max(measured, 0), self._last_batch_size
                )
            )
            self._stage.settle(steps_done + self._ahead)
        self._shares.tell(self._steps_done, self._ahead)
        self.begin_steps()

    def end_epoch(self) -> None:
        """An epoch is over. Collective where its end is that of a round."""
        # Who never told of a step has gone through all of them.
        self._steps_done = self._steps_done or self.num_steps_in_epoch
        self._next, self._epoch_is_open = self.cursor, False
        if self._controller.strategy.every == "epoch":
            self._apply(self._rounds.decide(self._last_batch_size))

    def end_training(self) -> None:
        """A `fit` is over, or was interrupted; the next one begins where its arguments say.

        Collective where a round is under way.
        """
        self._is_training = False
        were_under_way = self._rounds.are_under_way
        self._finish_round()
        if were_under_way:
            # A rank that ends its process takes MPI from those that have not come to look yet.
            self._collective.allgather(np.zeros(1))
        self._next, self._start, self._epoch_is_open = self.cursor, None, False
        self._rounds.end_training()
        if self._index_stage is not None:
            self._index_stage.end_training(self._controller.plan.batch_sizes)
        self.finish_resize()

    def abandon_training(self) -> None:
        """A `fit` was interrupted by a change of ranks; what was under way comes to nothing."""
        self._rounds.abandon()
        self._resize_to = None
        self.end_training()

    def check_resize(self, global_batch_size: int) -> None:
        """Raises ValueError if there can be no such global batch size, or not during this fit."""
        self._controller.bounds.check(global_batch_size)
        if not self._is_training:
            return
        needed, most = num_steps(self._stage.num_samples, global_batch_size), self.num_steps
        if needed > most:
            raise ValueError(
                f"global_batch_size={global_batch_size} needs {needed} steps an epoch, and Keras "
                f"runs no more than the {most} that it counted when fit began. Set "
                f"model.stop_training, resize when fit has returned, and go on with "
                f"balancer.dataset(source) and fit(initial_epoch=...). After a fit that was "
                f"interrupted, call balancer.loop.end_training() first."
            )

    def resize(self, global_batch_size: int) -> None:
        """Changes the global batch size, where an epoch is open at its end; see `check_resize`."""
        self._resize_to = global_batch_size
        if not self._epoch_is_open:
            self.finish_resize()

    def finish_resize(self) -> None:
        """Changes the global batch size if that has waited for the end of the epoch. Collective."""
        size, self._resize_to = self._resize_to, None
        if size is None:
            return
        self._finish_round()  # Its plan has the old sum.
        before = self._controller.plan
        self._controller.resize(size)
        self._global_batch_size.assign(size)
        stage = self._index_stage
        if stage is not None and num_steps(stage.num_samples, size) <= stage.num_steps:
            stage.resize(self._controller.plan.batch_sizes)
        else:  # Keras would not read all of it.
            self._index_stage = None
        if self._collective.rank == 0:
            _LOGGER.info(
                "global batch %d -> %d: %s -> %s",
                before.global_batch_size,
                size,
                before,
                self._controller.plan,
            )
        for follow in self.followers:
            follow(size)

    def change_ranks(self) -> None:
        """The job has other ranks, a training is not under way; the controller knows them."""
        self.clock.drain()
        batch_size = self._controller.global_batch_size
        if int(self._global_batch_size.numpy()) != batch_size:
            self._index_stage = None  # An epoch has another number of steps.
            self._global_batch_size.assign(batch_size)
        elif self._index_stage is not None:
            self._index_stage.change_rank(self._collective.rank)

    def global_batch_size(self) -> tf.Tensor:
        """Samples of all ranks in a full step, int64; in the graph."""
        return self._global_batch_size.read_value()

    def samples_in_step(self, step: int) -> int:
        """Samples of this rank in a step of the epoch; 0 where it only fills in."""
        return self._stage.share(step).num_samples

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this rank in the steps of the epoch so far."""
        return self._shares.samples.total

    def advance_step(self) -> StepWork:
        """What this rank does in the step under way; in the graph, once a step."""
        return self._shares.samples.advance()

    @property
    def _stage(self) -> IndexStage:
        if self._index_stage is None:
            raise RuntimeError(
                f"The balancer has no data set to train on, or one with fewer steps than its "
                f"global_batch_size={self._controller.global_batch_size} needs. Make one with "
                f"balancer.dataset(source), after any resize, and give it to fit; one made with "
                f"training=False is for evaluation."
            )
        return self._index_stage

    @property
    def _num_full_steps(self) -> int:
        return self._num_samples // self._controller.global_batch_size

    @property
    def _num_samples(self) -> int:
        """Samples of the open epoch that are read."""
        return self._stage.part(self._epoch).num_left

    @property
    def _ahead(self) -> int:
        # A call reads all its steps before anybody can settle more.
        return self._steps_in_call + self._rounds.steps_ahead

    def _go_on_in(self, epoch: int) -> None:
        """Lets go of where training was to go on, once it does."""
        if self._start is None:
            return
        error: Exception | None = None
        if self._start.epoch != epoch:
            error = ValueError(
                f"training begins with epoch {epoch} but is to go on in epoch "
                f"{self._start.epoch}, {self._start.num_used} samples of which are used. "
                f"Give fit initial_epoch={self._start.epoch}."
            )
        raise_together(self._collective, error)
        self._start = None

    @property
    def _last_batch_size(self) -> int:
        """This rank's in the last full step."""
        last_full_step = max(min(self._steps_done, self._num_full_steps) - 1, 0)
        return self._stage.batch_sizes_in(last_full_step)[self._collective.rank]

    def _finish_round(self) -> None:
        self._apply(self._rounds.finish())

    def _apply(self, agreed: Agreed | None) -> None:
        """A new plan holds from the first step that is not settled."""
        if agreed is None:
            return
        self._agreed_plan = agreed.decision.plan
        if agreed.decision.changed:
            batch_sizes = agreed.decision.plan.batch_sizes
            first = self._stage.publish(batch_sizes)
            if first < self.num_steps_in_epoch:
                self._shares.change(first, batch_sizes)
            self._rounds.wait_for_plan(first - self._steps_done)
        self._log(agreed)

    def _log(self, agreed: Agreed) -> None:
        if self._collective.rank != 0:
            return
        before, decision = agreed.before, agreed.decision
        where = f"epoch {self._epoch}, step {self._steps_done}"
        if decision.changed:
            _LOGGER.info("%s: %s -> %s: %s", where, before, decision.plan, decision.reason)
        elif decision.warning and decision.reason not in self._warnings:
            self._warnings.add(decision.reason)
            _LOGGER.warning("%s: %s: %s", where, before, decision.reason)
