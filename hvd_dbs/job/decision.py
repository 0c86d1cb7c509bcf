"""Decisions of a running job: every rank measures, rank 0 decides, every rank knows."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Controller, Decision, Measurement, Plan
from hvd_dbs.balancing.steps_ahead import LEAST
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.links import ROW_SIZE as LINKS_SIZE
from hvd_dbs.host.hindrance import Hindrance
from hvd_dbs.job import communication
from hvd_dbs.job.communication import Communication
from hvd_dbs.job.step_metrics import StepMetrics

_LEAST_COST = 1e-5
_HEARD_SIZE = 9
_OWN_SIZE = _HEARD_SIZE + 2
_HEAD_SIZE = 3 + 3
"""Numbers of an answer before the batch sizes: three, and the metrics."""
_ROW_SIZE = _OWN_SIZE + LINKS_SIZE + communication.ROW_SIZE


@dataclass(frozen=True)
class Report:
    """What a rank reports to the others in a round.

    Attributes:
        measurement: What it measured, one row.
        cost_seconds: What a round costs it.
        steps_ahead: By how many steps its data pipeline has to be ahead.
        step_seconds: What a whole step took, waiting for the others included.
        links: Its links to other hosts, as `LinkMeter.row` gives them.
        communication: What its buckets of gradients took, as `communication.row_of` gives it.
        input_seconds: How long a step waited for its data.
        hindrance: What hindered its process; page faults are those of a step.
    """

    measurement: Measurement
    cost_seconds: float = 0.0
    steps_ahead: int = LEAST
    step_seconds: float = math.nan
    links: NDArray[np.float64] = field(default_factory=lambda: np.full(LINKS_SIZE, np.nan))
    communication: NDArray[np.float64] = field(
        default_factory=lambda: np.full(communication.ROW_SIZE, np.nan)
    )
    input_seconds: float = math.nan
    hindrance: Hindrance = field(default_factory=Hindrance)

    @property
    def row(self) -> NDArray[np.float64]:
        """What all strategies have in common, shape `[33]`."""
        seen = self.measurement
        columns = (seen.batch_sizes, seen.busy_seconds, seen.cpu_load, seen.first_bucket_seconds)
        causes = self.input_seconds, self.hindrance.throttled_share, self.hindrance.page_faults
        quartile_seconds = float(seen.quartile_seconds[0])
        shown = *(column[0] for column in columns), self.step_seconds, *causes, quartile_seconds
        own = *shown, self.cost_seconds, self.steps_ahead
        return np.array([*own, *self.links, *self.communication])


@dataclass(frozen=True)
class Received:
    """What rank 0 has received in a round; NaN: unknown.

    Attributes:
        batch_sizes: Local batch sizes that were measured, shape `[size]`.
        busy_seconds: Of each rank in a step, shape `[size]`.
        cpu_load: Use of each rank's processors by others, 0 to 1, shape `[size]`.
        step_seconds: A whole step, as the busiest rank has seen it.
        links: Of each rank to other hosts, as `LinkMeter.row` gives them, shape `[size, 6]`.
        first_bucket_seconds: Of each rank until its first bucket of gradients is ready, `[size]`.
        communication: What buckets take on their way.
        input_seconds: How long a step of each rank waited for its data, shape `[size]`.
        throttled_share: Part of the time in which each rank's container had used up its quota of
            processor time, shape `[size]`.
        page_faults: Of each rank's process in a step, shape `[size]`.
        quartile_seconds: Busy seconds that a quarter of each rank's steps did not exceed, `[size]`.
    """

    batch_sizes: NDArray[np.float64]
    busy_seconds: NDArray[np.float64]
    cpu_load: NDArray[np.float64]
    step_seconds: float
    links: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, LINKS_SIZE)))
    first_bucket_seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    communication: Communication = field(default_factory=Communication)
    input_seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    throttled_share: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    page_faults: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    quartile_seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def overlap_seconds(self) -> float:
        """T_o, the communication of all buckets but the last."""
        return self.communication.overlap_seconds

    @property
    def last_bucket_seconds(self) -> float:
        """T_u, that of the last one."""
        return self.communication.last_bucket_seconds

    @property
    def negotiation_seconds(self) -> float:
        """What a sum takes whatever its size."""
        return self.communication.negotiation_seconds

    @classmethod
    def of(cls, rows: NDArray[np.float64], communication: Communication) -> Received:
        """From the rows of all ranks, shape `[size, 33]`."""
        batch_sizes, busy_seconds, cpu_load, first_seconds, step_seconds, *others = rows[
            :, :_HEARD_SIZE
        ].T
        # A rank that has changed reports other steps than the rest; its values belong together.
        busiest = np.argmax(np.where(np.isfinite(busy_seconds), busy_seconds, -np.inf))
        step, links = float(step_seconds[busiest]), rows[:, _OWN_SIZE : _OWN_SIZE + LINKS_SIZE]
        known = (batch_sizes, busy_seconds, cpu_load, step, links, first_seconds, communication)
        return cls(*known, *others)


@dataclass(frozen=True)
class Agreed:
    """What a round has come to, on all ranks.

    Attributes:
        before: The plan that was in force for the one who decided.
        decision: Rank 0's decision; its reason is known there alone.
        steps_to_next: Steps until the next decision; None where an epoch's end brings it.
        steps_ahead: By how many steps all data pipelines are ahead from now on.
        num_steps: Steps of training since the round before was begun, until this one was.
        metrics: What its steps were like.
        received: What the decision was made from; on rank 0 alone.
    """

    before: Plan
    decision: Decision
    steps_to_next: int | None
    steps_ahead: int
    num_steps: int
    metrics: StepMetrics = field(default_factory=StepMetrics)
    received: Received | None = None


class DecisionExchange:
    """One allgather of floats and one broadcast of integers, beside the training.

    Paces are measured, time models learn, ranks exchange and rank 0 decides in the collective's
    thread, so that nobody waits for them who calls `finish` a step of training later. The first
    round of the job's ranks has one more allgather, and measures Horovod's negotiation.

    Args:
        collective: The job.
        controller: This rank's controller; nobody else makes it learn or decide before `finish`.
        report: Tells what this rank has to say; called once, in the collective's thread.
        num_steps: Steps of training since the round before was begun.
        communication: What the last round has shown; None, on all ranks: this is the first one.
        begins_after: Seconds for which the collective's thread waits first.

    Attributes:
        communication: What this round has shown; known at its end.
        seconds_beside: Processor time that it took beside the training's thread; known at its end.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        report: Callable[[], Report],
        num_steps: int,
        communication: Communication | None = None,
        begins_after: float = 0.0,
    ) -> None:
        self.communication = communication
        self._begins_after = begins_after
        self._num_steps = num_steps
        self.seconds_beside = 0.0
        self._begun_in = threading.get_ident()
        self._controller = controller
        self._before = controller.plan
        self._decision: Decision | None = None
        self._received: Received | None = None
        self._failure: Exception | None = None
        self._answer = collective.start(partial(self._exchange, report))

    def finish(self) -> Agreed:
        """Every rank takes over the plan.

        Raises:
            RuntimeError: On all ranks, if the strategy broke an invariant.
        """
        answer = self._answer.result().tolist()
        (status, steps_to_next, steps_ahead), batch_sizes = answer[:3], answer[_HEAD_SIZE:]
        metrics = StepMetrics.of_whole_numbers(answer[3:_HEAD_SIZE])
        if status:
            raise self._failure or RuntimeError(
                "the strategy broke an invariant; rank 0 says which."
            )
        due = steps_to_next or None
        if self._decision is not None:
            known = (self._before, self._decision, due, steps_ahead, self._num_steps)
            return Agreed(*known, metrics, self._received)
        plan = Plan(tuple(batch_sizes))
        self._controller.adopt(plan, due)
        decision = Decision(plan, plan != self._before, reason="decided by rank 0")
        return Agreed(self._before, decision, due, steps_ahead, self._num_steps, metrics)

    def _exchange(self, report: Callable[[], Report], collective: Collective) -> NDArray[np.int64]:
        """Status, steps to the next decision (0: not said), steps ahead, metrics, batch sizes."""
        is_beside = threading.get_ident() != self._begun_in
        if is_beside and self._begins_after > 0:
            time.sleep(self._begins_after)
        start = time.thread_time()
        mine = report()
        is_first = self.communication is None
        communication = self.communication or Communication.first(collective, mine.communication)
        record = self._controller.observe(communication.added_to(mine.measurement))[0]
        records = collective.allgather(np.concatenate([record, mine.row]))
        records, rows = records[:, :-_ROW_SIZE], records[:, -_ROW_SIZE:]
        if not is_first:
            communication = communication.after(rows[:, _OWN_SIZE + LINKS_SIZE :])
        self.communication = communication
        answer = np.zeros(_HEAD_SIZE + collective.size, dtype=np.int64)
        if collective.rank == 0:
            try:
                self._received = received = Received.of(rows, communication)
                cost_seconds, steps_ahead = rows[:, _HEARD_SIZE:_OWN_SIZE].max(axis=0)
                self._controller.note_step(received.step_seconds, received.batch_sizes)
                self._controller.decision_seconds = max(cost_seconds, _LEAST_COST)
                decision = self._controller.decide(records)
                answer[1:3] = decision.steps_to_next or 0, steps_ahead
                answer[3:_HEAD_SIZE] = StepMetrics.of(received).whole_numbers
                answer[_HEAD_SIZE:] = decision.plan.batch_sizes
                self._decision = decision
            except Exception as error:  # The others wait for an answer.
                answer[0], self._failure = 1, error
        else:
            self._controller.pool(records)
        answer = collective.broadcast(answer)
        if is_beside:
            self.seconds_beside = time.thread_time() - start
        return answer
