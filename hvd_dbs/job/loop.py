"""Epochs, steps and rounds of a running job: what callbacks and optimizers drive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hvd_dbs.balancing import Controller, Plan
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.links import LinkMeter
from hvd_dbs.job.decision import Agreed
from hvd_dbs.job.decision_log import DecisionLog
from hvd_dbs.job.epoch_steps import EpochSteps
from hvd_dbs.job.position import TrainingPosition
from hvd_dbs.job.resizing import Resizing
from hvd_dbs.job.round_schedule import RoundSchedule
from hvd_dbs.job.speed_profile import SpeedProfile
from hvd_dbs.job.step_metrics import MeanMetrics, StepMetrics
from hvd_dbs.ops.step_clock import StepClock


class TrainingLoop:
    """Lets rounds of decision and the data follow a training from step to step.

    Every rank calls the same methods in the same order; those that decide are collective.

    Args:
        collective: The job.
        controller: This rank's controller.
        log: What people see of decisions; None: changes of plan, by rank 0.
        profile: What is known of kinds of device from other trainings; None: nothing is kept.
        links: Measures this rank's links to other hosts; None: nothing is known of them.
        on_resize: Called with each new global batch size.

    Attributes:
        clock: This rank's clock.
        samples: What the graph reads of the step under way.
        position: Where training stands.
        is_training: Whether a training has begun, and not ended.
        log: The one given, or made.
        profile: The one given, or one that keeps nothing.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        log: DecisionLog | None = None,
        profile: SpeedProfile | None = None,
        links: LinkMeter | None = None,
        on_resize: Callable[[int], None] | None = None,
    ) -> None:
        self.clock = StepClock()
        self._collective = collective
        self._controller = controller
        self._epoch_steps = EpochSteps(self.clock)
        self.samples = self._epoch_steps.samples
        self.position = TrainingPosition(collective, controller, self.samples)
        self.log = log or DecisionLog(collective, controller)
        self.profile = profile or SpeedProfile(collective, controller)
        self._rounds = RoundSchedule(collective, controller, self.clock, links)
        self._metrics = MeanMetrics()
        self._resizing = Resizing(collective, controller, self.position, on_resize)
        self._agreed_plan = controller.plan
        self._steps_in_call = 1
        self.is_training = False

    @property
    def heeds_changes(self) -> bool:
        """Whether ranks exchange a change signal with their gradients."""
        return self._rounds.leaves_cadence

    @property
    def steps_ahead(self) -> int:
        """Steps after the present one whose data are prepared, where plans change in mid-epoch.

        Between two trainings those of the last one.
        """
        return self._rounds.steps_ahead

    @property
    def metrics(self) -> StepMetrics:
        """What steps of the epoch were like in the rounds that have ended in it.

        Before one has, those of the epoch before; the same on all ranks.
        """
        return self._metrics.mean

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
        self.finish_interrupted()
        stage = self.position.stage
        self.profile.begin_training(model, is_new=self.position.is_new)
        self.is_training = True
        self._steps_in_call = steps_in_call
        self._rounds.begin_training(is_cut_by_cost=stage.is_cut_by_cost)
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
        self._metrics.restart()
        self.position.open_epoch(epoch)
        if not self._rounds.are_within_epochs:
            self.clock.drain()
        self.clock.restart()
        self._agreed_plan = self._controller.plan  # A state may have been loaded.
        stage, batch_sizes = self.position.stage, self._agreed_plan.batch_sizes
        settled = self._ahead if self._rounds.plans_change_within_epochs else stage.num_steps
        stage.open_epoch(epoch, batch_sizes, settled)
        self._epoch_steps.begin_epoch(stage, epoch, self.position.num_steps_in_epoch, batch_sizes)
        self._epoch_steps.announce(0, self._ahead)
        self._begin_step(0)

    def begin_steps(self) -> None:
        """The data of the next step are about to be asked for.

        Who does not say so has them asked for at the end of the step before.
        """
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
        if self._rounds.plans_change_within_epochs:
            position.stage.settle(steps_done + self._ahead)
        self._epoch_steps.announce(position.steps_done, self._ahead)
        self._begin_step(position.steps_done)
        self.begin_steps()

    def end_epoch(self) -> None:
        """An epoch is over. Collective.

        Raises:
            RuntimeError: If gradients were reduced in it, and none of its steps was reported.
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
        self.samples.end_training()
        self.log.end()
        self.profile.write()
        self.position.end_training()
        self.finish_resize()

    def abandon_training(self) -> None:
        """A `fit` was interrupted by a change of ranks; what was under way comes to nothing."""
        self._rounds.abandon()
        self._resizing.cancel()
        self.end_training()

    def check_resize(self, global_batch_size: int) -> None:
        """Raises ValueError if there can be no such global batch size, or not during this fit."""
        self._resizing.check(global_batch_size, is_training=self.is_training)

    def resize(self, global_batch_size: int) -> None:
        """Changes the global batch size, where an epoch is open at its end; see `check_resize`."""
        self._resizing.want(global_batch_size)
        if not self.position.is_in_epoch:
            self.finish_resize()

    def finish_interrupted(self) -> None:
        """Ends what is under way since a `fit` was interrupted. Collective where anything is."""
        self._finish_round()
        self.finish_resize()

    def finish_resize(self) -> None:
        """Changes the global batch size if that has waited for the end of the epoch. Collective."""
        if not self._resizing.is_wanted:
            return
        self._finish_round()  # Its plan has the old sum.
        self._resizing.finish()
        self.log.begin()

    def change_ranks(self, places: Sequence[Place]) -> None:
        """The job has other ranks, which run there; no training is under way.

        The controller knows them.
        """
        self.log.change_ranks([place.host for place in places])
        self.profile.change_ranks(places)
        self._rounds.change_ranks()
        self.clock.drain()
        self._resizing.change_ranks()

    def samples_in_step(self, step: int) -> int:
        """Samples of this rank in a step of the epoch; 0 where it has padding samples only."""
        return self.position.samples_in_step(step)

    @property
    def samples_under_way(self) -> int:
        """Most samples of this rank in a step that runs now; 0 between epochs."""
        position, first = self.position, self.steps_done
        if not position.is_in_epoch:
            return 0
        end = min(first + self._steps_in_call, position.num_steps_in_epoch)
        return max(map(self.samples_in_step, range(first, end)), default=0)

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this rank in the steps of the epoch so far."""
        return self.samples.total

    @property
    def steps_done(self) -> int:
        """Steps of the epoch that are over."""
        return self.position.steps_done

    @property
    def _ahead(self) -> int:
        # A call reads all its steps before anybody can settle more.
        return self._steps_in_call + self._rounds.steps_ahead

    def _begin_step(self, step: int) -> None:
        """What is reduced from now on belongs to this step, where one step runs in a call."""
        if self._steps_in_call == 1:
            self.samples.begin_step(step)
        elif (num_begun := self.samples.num_begun) not in (0, step):
            raise ValueError(
                f"Gradients were reduced {num_begun} times in the first {step} steps of "
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
        self._agreed_plan = plan = agreed.decision.plan
        if agreed.decision.changed:
            first = self.position.publish(plan)
            if first < self.position.num_steps_in_epoch:
                self._epoch_steps.change(first, plan.batch_sizes)
        self._metrics.add(agreed.metrics, agreed.num_steps)
        self._rounds.overhead.count_beside(self.log.take_seconds())
        self.log.write(agreed, self.position.epoch, self.position.steps_done)
        self.profile.add(agreed.received)
