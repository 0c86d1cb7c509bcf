"""Epochs, steps and rounds of a running job: what callbacks and optimizers drive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from hvd_dbs.balancing import Controller, Plan
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.links import LinkMeter
from hvd_dbs.data.evaluation_stage import Evaluation
from hvd_dbs.job.decision import Agreed
from hvd_dbs.job.decision_log import DecisionLog
from hvd_dbs.job.decision_rounds import DecisionRounds
from hvd_dbs.job.position import TrainingPosition
from hvd_dbs.job.speed_profile import SpeedProfile
from hvd_dbs.job.step_shares import StepShares
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import StepBatch, StepWork
from hvd_dbs.sampling import num_steps
from hvd_dbs.watchdog.activity import is_evaluating

_LOGGER = logging.getLogger(__name__)


class TrainingLoop:
    """Lets rounds of decision and the data follow a training from step to step.

    Every rank calls the same methods in the same order; those that decide are collective.

    Args:
        collective: The job.
        controller: This rank's controller.
        log: What people hear of decisions; None: changes of plan, by rank 0.
        profile: What is known of kinds of device from other trainings; None: nothing is kept.

    Attributes:
        clock: This rank's clock.
        position: Where training stands.
        is_training: Whether a training has begun, and not ended.
        log: The one given, or made.
        links: Measures this rank's links to other hosts; knows none before it is given hosts.
        profile: The one given, or one that keeps nothing.
        followers: What is called with each new global batch size.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        log: DecisionLog | None = None,
        profile: SpeedProfile | None = None,
    ) -> None:
        self.clock = StepClock()
        self.evaluation = Evaluation()
        self.evaluation.on_unwatched = self.warn_of_a_part
        self._collective = collective
        self._controller = controller
        self._shares = StepShares(self.clock)
        self.position = TrainingPosition(collective, controller, self._shares.samples)
        self.log = log or DecisionLog(collective, controller)
        self.profile = profile or SpeedProfile(collective, controller)
        are_kept = self.log.has_journal or self.profile.is_used
        self.links = LinkMeter()
        self._rounds = DecisionRounds(collective, controller, self.clock, are_kept, self.links)
        self._agreed_plan = controller.plan
        self._steps_in_call = 1
        self.is_training = False
        self._has_warned_of_a_part = False
        self._resize_to: int | None = None
        self.followers: list[Callable[[int], None]] = []
        self._global_batch_size = controller.global_batch_size

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
    def agreed_plan(self) -> Plan:
        """The plan that all ranks know; rank 0's controller may know of a newer one."""
        return self._agreed_plan if self.is_training else self._controller.plan

    def begin_training(self, steps_in_call: int = 1, model: str = "") -> None:
        """A `fit` begins. Collective where a profile is used.

        Args:
            steps_in_call: How many steps run between two calls of `end_steps`.
            model: A name by which a profile knows the model again.
        """
        self._finish_round()  # Of a fit that was interrupted.
        self.finish_resize()
        self.profile.begin_training(model, is_new=self.position.is_new)
        self.is_training = True
        self._steps_in_call = steps_in_call
        self._rounds.pace.is_cut_by_cost = self.position.stage.is_cut_by_cost
        self._rounds.begin_training()
        self._agreed_plan = self._controller.plan
        self.position.begin_training()
        self.log.begin()

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins with the plan last decided on. Collective where a round is under way.

        Raises:
            RuntimeError: If no training has begun.
            ValueError: On all ranks, if training is to go on in another epoch.
        """
        if not self.is_training:
            raise RuntimeError(
                "begin_epoch without a training: its data would be read by another plan than its "
                "gradients are weighted by. Call balancer.loop.begin_training() before the first "
                "epoch, and again after end_training."
            )
        self.position.check_epoch(epoch)
        self._finish_round()
        self.finish_resize()
        self.position.open_epoch(epoch)
        if not self._rounds.are_within_epochs:
            self.clock.drain()
        self.clock.restart()
        stage, batch_sizes = self.position.stage, self._controller.plan.batch_sizes
        settled = self._ahead if self._rounds.are_within_epochs else stage.num_steps
        stage.open_epoch(epoch, batch_sizes, settled)
        self._shares.begin_epoch(stage, epoch, self.position.num_steps_in_epoch, batch_sizes)
        self._shares.tell(0, self._ahead)
        self._begin_step(0)

    def begin_steps(self) -> None:
        """The data of the next step are about to be asked for.

        Who does not say so has them asked for at the end of the step before.
        """
        if self._rounds.are_within_epochs:
            self.clock.ask()

    def end_steps(self, steps_done: int) -> None:
        """So many steps of the epoch are over. Collective where a round is over too.

        Raises:
            ValueError: If they are no more than before; if several steps run in one call, and
                gradients were not reduced once in each of them.
        """
        position = self.position
        before = position.steps_done
        position.advance(steps_done)
        new = position.steps_done - before
        self._rounds.count(new)
        if self._rounds.are_within_epochs:
            # The first step of an epoch is not measured, on any rank, nor is a partial one.
            measured = max(min(steps_done, position.num_full_steps) - max(before, 1), 0)
            self._apply(self._rounds.end_steps(new, measured, position.last_batch_size))
            position.stage.settle(steps_done + self._ahead)
        self._shares.tell(position.steps_done, self._ahead)
        self._begin_step(position.steps_done)
        self.begin_steps()

    def end_epoch(self) -> None:
        """An epoch is over. Collective.

        Raises:
            RuntimeError: If gradients were reduced in it, and none of its steps was told of.
            ValueError: On all ranks, if it did not read the balancer's data set, or a loss had
                values that belong to no sample.
        """
        self.position.check_reading()
        self.position.check_values()
        self.position.close_epoch()
        if self._rounds.are_between_epochs:
            self._apply(self._rounds.decide(self.position.last_batch_size))
        self.profile.write()

    def end_training(self) -> None:
        """A `fit` is over, or was interrupted; the next one begins where its arguments say.

        Collective where a round is under way.
        """
        self.is_training = False
        were_under_way = self._rounds.are_under_way
        self._finish_round()
        if were_under_way:
            # A rank that ends its process takes MPI from those that have not come to look yet.
            self._collective.allgather(np.zeros(1))
        self._rounds.end_training()
        self.log.flush()
        self.profile.write()
        self.position.end_training()
        self.finish_resize()

    def abandon_training(self) -> None:
        """A `fit` was interrupted by a change of ranks; what was under way comes to nothing."""
        self._rounds.abandon()
        self._resize_to = None
        self.end_training()

    def warn_of_a_part(self) -> None:
        """Warns once where Keras evaluates on a rank's samples, and nobody adds up the results."""
        if self._has_warned_of_a_part or self._collective.size == 1 or not is_evaluating():
            return
        self._has_warned_of_a_part = True
        if self._collective.rank == 0:
            _LOGGER.warning(
                "model.evaluate reads each rank's part of a data set of balancer.dataset, so its "
                "results differ between ranks. Make the data set with training=False, and give "
                "evaluate callbacks=[hvd.callbacks.MetricAverageCallback()]."
            )

    def check_resize(self, global_batch_size: int) -> None:
        """Raises ValueError if there can be no such global batch size, or not during this fit."""
        self._controller.bounds.check(global_batch_size)
        if not self.is_training:
            return
        stage = self.position.stage
        needed, most = num_steps(stage.num_samples, global_batch_size), stage.num_steps
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
        if not self.position.is_in_epoch:
            self.finish_resize()

    def finish_resize(self) -> None:
        """Changes the global batch size if that has waited for the end of the epoch. Collective."""
        size, self._resize_to = self._resize_to, None
        if size is None:
            return
        self._finish_round()  # Its plan has the old sum.
        before = self._controller.plan
        self._controller.resize(size)
        self._global_batch_size = size
        self.position.resize()
        if self._collective.rank == 0:
            _LOGGER.info(
                "global batch %d -> %d: %s -> %s",
                before.global_batch_size,
                size,
                before,
                self._controller.plan,
            )
        self.log.begin()
        for follow in self.followers:
            follow(size)

    def change_ranks(self, places: Sequence[Place]) -> None:
        """The job has other ranks, which run there; no training is under way.

        The controller knows them.
        """
        self.log.change_ranks([place.host for place in places])
        self.profile.change_ranks(places)
        self.clock.drain()
        batch_size = self._controller.global_batch_size
        keeps_steps = self._global_batch_size == batch_size
        self._global_batch_size = batch_size
        self.position.change_ranks(keeps_steps=keeps_steps)

    def samples_in_step(self, step: int) -> int:
        """Samples of this rank in a step of the epoch; 0 where it only fills in."""
        return self.position.stage.share(step).num_samples

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this rank in the steps of the epoch so far."""
        return self._shares.samples.total

    def step_work(self) -> StepWork:
        """What this rank does in the step under way; in the graph."""
        return self._shares.samples.work()

    def step_batch(self) -> StepBatch:
        """The global batch of the step under way; in the graph."""
        return self._shares.samples.batch()

    def note_misfit(self, is_misfit: tf.Tensor) -> None:
        """Notes whether a loss has values that belong to no sample; in the graph."""
        self._shares.samples.note_misfit(is_misfit)

    @property
    def _ahead(self) -> int:
        # A call reads all its steps before anybody can settle more.
        return self._steps_in_call + self._rounds.steps_ahead

    def _begin_step(self, step: int) -> None:
        """What is reduced from now on belongs to this step, where one step runs in a call."""
        samples = self._shares.samples
        if self._steps_in_call == 1:
            samples.begin_step(step)
        elif samples.num_begun not in (0, step):
            raise ValueError(
                f"Gradients were reduced {samples.num_begun} times in the first {step} steps of "
                f"the epoch. Where several steps run in one call, one optimizer is applied, once "
                f"in each. Leave out steps_per_execution; a loop of your own gives begin_training "
                f"the number of steps between two calls of end_steps."
            )

    def _finish_round(self) -> None:
        self._apply(self._rounds.finish())

    def _apply(self, agreed: Agreed | None) -> None:
        """A new plan holds from the first step that is not settled."""
        if agreed is None:
            return
        self._agreed_plan = agreed.decision.plan
        if agreed.decision.changed:
            batch_sizes = agreed.decision.plan.batch_sizes
            first = self.position.stage.publish(batch_sizes)
            if first < self.position.num_steps_in_epoch:
                self._shares.change(first, batch_sizes)
        self.log.tell(agreed, self.position.epoch, self.position.steps_done)
        self.profile.add(agreed.heard)
