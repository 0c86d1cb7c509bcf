"""When the ranks of a running job decide, and what each of them tells the others then."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import numpy as np

from hvd_dbs.balancing import Controller, Measurement
from hvd_dbs.balancing.change_signal import STEPS_WATCHED
from hvd_dbs.balancing.plan import FIRST_ROUND_STEPS
from hvd_dbs.balancing.steps_ahead import LEAST, StepsAhead
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.links import LinkMeter
from hvd_dbs.host.beside_training import begins_after
from hvd_dbs.host.hindrance import HindranceMeter
from hvd_dbs.host.host_load import HostLoad
from hvd_dbs.job.communication import Communication
from hvd_dbs.job.decision import Agreed, DecisionExchange, Report
from hvd_dbs.job.overhead import Overhead
from hvd_dbs.job.rank_pace import RankPace, RoundSteps
from hvd_dbs.ops.step_clock import StepClock

_LOGGER = logging.getLogger(__name__)


class RoundSchedule:
    """The round under way, and when the next one is due.

    A round is begun after one step and finished after the next, so that nobody waits for it.
    Where the cadence is automatic, ranks exchange a change signal with their gradients: whether
    their pace is far from what the last round measured. If one's is, a round begins after that
    step.
    Every rank makes the same calls in the same order.

    Args:
        collective: The job.
        controller: This rank's controller.
        clock: This rank's clock.
        links: Measures this rank's links to other hosts.

    Attributes:
        steps_ahead: Steps after the present one whose plans are final, so that the data pipeline
            can prepare them; the same on all ranks.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        clock: StepClock,
        links: LinkMeter | None = None,
    ) -> None:
        self.steps_ahead = LEAST
        self.pace = RankPace(clock)
        self.overhead = Overhead(clock.exclude)
        self._collective, self._controller = collective, controller
        self._strategy = controller.strategy
        self._host_load = HostLoad()
        self._hindrance = HindranceMeter()
        self._links = links or LinkMeter()
        self._under_way: DecisionExchange | None = None
        self._communication: Communication | None = None
        self._steps_since = 0
        self._steps_in_round = 0
        self._steps_to_next = 1
        self._is_change = False
        self._needed = StepsAhead()

    @property
    def are_within_epochs(self) -> bool:
        """Whether decisions fall between steps, not only between epochs."""
        return self._controller.steps_to_next is not None

    @property
    def plans_change_within_epochs(self) -> bool:
        """Whether the data of a step can be prepared only once rounds before it have ended."""
        return self.are_within_epochs and not self._strategy.keeps_plan

    @property
    def are_between_epochs(self) -> bool:
        """Whether rounds end with epochs, also those of a strategy that never decides."""
        return self._strategy.every in ("epoch", None)

    @property
    def leaves_cadence(self) -> bool:
        """Whether the strategy leaves it to the job when the next round is due."""
        return self._strategy.every == "automatic"

    @property
    def are_under_way(self) -> bool:
        """Whether an exchange has not ended yet; the same answer on all ranks."""
        return self._under_way is not None

    def begin_training(self, *, is_cut_by_cost: bool = False) -> None:
        """A `fit` begins.

        Args:
            is_cut_by_cost: See `RankPace`.
        """
        self.pace.is_cut_by_cost = is_cut_by_cost
        self.pace.job_size = self._collective.size
        self.steps_ahead = LEAST  # New ranks have not said yet what they need.
        self._steps_in_round = 0
        self._steps_to_next = self._controller.steps_to_next or 1
        if self.leaves_cadence:  # Who knows what has happened since the last fit?
            self._steps_to_next = min(self._steps_to_next, FIRST_ROUND_STEPS)
        if self.are_within_epochs:
            self.pace.restart()
            self.overhead.restart()
        self._host_load.start()
        self._hindrance.take()  # What was before the training hinders no step.

    def end_training(self) -> None:
        """A `fit` is over."""
        self._host_load.stop()

    def count(self, num_steps: int) -> None:
        """So many more steps of training are over, measured or not."""
        self._steps_since += num_steps

    def end_steps(self, num_steps: int, num_measured: int, batch_size: int) -> Agreed | None:
        """Some steps are over; whatever is due goes one step further. Collective at times.

        Args:
            num_steps: Steps since the last call.
            num_measured: Those of them that say something about a rank's pace.
            batch_size: This rank's in the last of them.

        Returns:
            What a round has come to that ends here.
        """
        self._steps_in_round += num_measured
        with self.overhead.counted():
            agreed = self.finish()
            is_change = self.leaves_cadence and self.pace.take_signal()
            if is_change or self._steps_in_round >= self._steps_to_next:
                self._under_way = self._start(batch_size, is_change)
            elif self.leaves_cadence:
                self.pace.look(num_steps)
        return agreed

    def decide(self, batch_size: int) -> Agreed:
        """A whole round at once, at the end of an epoch. Collective."""
        return self._end(self._start(batch_size, is_waited_for=True))

    def finish(self) -> Agreed | None:
        """Waits for what is under way, on all ranks, and tells what a round has come to."""
        if self._under_way is None:
            return None
        under_way, self._under_way = self._under_way, None
        agreed = self._end(under_way)
        self.overhead.count_beside(under_way.seconds_beside)
        self._steps_to_next = agreed.steps_to_next or 1
        if agreed.steps_ahead != self.steps_ahead and self._collective.rank == 0:
            _LOGGER.info(
                "data are prepared %d steps ahead instead of %d",
                agreed.steps_ahead,
                self.steps_ahead,
            )
        self.steps_ahead = agreed.steps_ahead
        if self._is_change and not agreed.decision.changed:
            # A pause, or what needs to be seen twice to be believed.
            self._steps_to_next = min(self._steps_to_next, STEPS_WATCHED)
        return agreed

    def abandon(self) -> None:
        """Forgets what is under way, with ranks that are no more."""
        self._under_way, self._is_change = None, False

    def change_ranks(self) -> None:
        """The job has other ranks; between them gradients take another time."""
        self._communication = None

    def _start(
        self, batch_size: int, is_change: bool = False, is_waited_for: bool = False
    ) -> DecisionExchange:
        self.overhead.begin_round()
        num_steps, self._steps_since = self._steps_since, 0
        self._steps_in_round = 0
        self._is_change = is_change
        steps = self.pace.take()
        newest = float(np.nan_to_num(steps.whole_seconds[-1:]).sum())
        later = 0.0 if is_waited_for else begins_after(newest)
        report = partial(self._report, steps, batch_size, self.steps_ahead)
        return DecisionExchange(
            self._collective, self._controller, report, num_steps, self._communication, later
        )

    def _end(self, exchange: DecisionExchange) -> Agreed:
        """Waits for an exchange; the next one knows what it has shown of communication."""
        agreed = exchange.finish()
        self._communication = exchange.communication
        self.pace.expected = self._controller.expected_steps
        return agreed

    def _report(self, steps: RoundSteps, batch_size: int, steps_ahead: int) -> Report:
        waited, whole = steps.data_seconds, steps.whole_seconds
        if self.plans_change_within_epochs:
            self._needed = self._needed.after(waited, whole, steps_ahead)
        pace = self.pace.measure(steps, batch_size)
        load, hindrance = self._host_load.latest(), self._hindrance.take()
        faults_in_step = hindrance.page_faults / max(len(whole), 1)
        measurement = Measurement.of(
            [batch_size],
            [pace.busy_seconds],
            num_steps=[pace.num_steps],
            quartile_seconds=[pace.quartile_seconds],
            median_seconds=[pace.median_seconds],
            cpu_load=[load.cpu],
            memory_load=[load.memory],
            first_bucket_seconds=[pace.first_bucket_seconds],
        )
        return Report(
            measurement,
            self.overhead.round_seconds,
            self._needed.wanted,
            pace.step_seconds,
            self._links.row(),
            steps.communication_row,
            pace.input_seconds,
            replace(hindrance, page_faults=faults_in_step),
        )
