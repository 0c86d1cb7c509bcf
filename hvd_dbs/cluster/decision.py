"""Decisions of a running job: every rank measures, rank 0 decides, every rank knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Controller, Decision, Measurement, Plan
from hvd_dbs.cluster.collective import Collective

_LEAST_COST = 1e-5


@dataclass(frozen=True)
class Agreed:
    """What a round has come to, on all ranks.

    Attributes:
        before: The plan that was in force for the one who decided.
        decision: Rank 0's decision; its reason is known there alone.
        steps_to_next: Steps until the next decision; None where an epoch's end brings it.
    """

    before: Plan
    decision: Decision
    steps_to_next: int | None


class DecisionRound:
    """One allgather of floats and one broadcast of integers, beside the training.

    Paces are measured, time models learn, ranks exchange and rank 0 decides in the collective's
    thread, so that nobody waits for them who calls `finish` a step of training later.

    Args:
        collective: The job.
        controller: This rank's controller; nobody else makes it learn or decide before `finish`.
        measure: Tells what this rank measured, one row; called once, in the collective's thread.
        cost_seconds: What a round costs this rank.

    Attributes:
        seconds_beside: Processor time that it took beside the training's thread; known at its end.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        measure: Callable[[], Measurement],
        cost_seconds: float = 0.0,
    ) -> None:
        self.seconds_beside = 0.0
        self._begun_in = threading.get_ident()
        self._controller = controller
        self._before = controller.plan
        self._decision: Decision | None = None
        self._failure: RuntimeError | None = None
        self._answer = collective.start(partial(self._exchange, measure, cost_seconds))

    def finish(self) -> Agreed:
        """Every rank takes over the plan.

        Raises:
            RuntimeError: On all ranks, if the strategy broke an invariant.
        """
        status, steps_to_next, *batch_sizes = self._answer.result().tolist()
        if status:
            raise self._failure or RuntimeError(
                "the strategy broke an invariant; rank 0 says which."
            )
        due = steps_to_next or None
        if self._decision is not None:
            return Agreed(self._before, self._decision, due)
        plan = Plan(tuple(batch_sizes))
        self._controller.adopt(plan, due)
        reason = "decided by rank 0"
        return Agreed(self._before, Decision(plan, plan != self._before, reason=reason), due)

    def _exchange(
        self, measure: Callable[[], Measurement], cost_seconds: float, collective: Collective
    ) -> NDArray[np.int64]:
        """Status, steps to the next decision (0: not said), local batch sizes."""
        start = time.thread_time()
        record = np.append(self._controller.observe(measure())[0], cost_seconds)
        records = collective.allgather(record)
        answer = np.zeros(2 + collective.size, dtype=np.int64)
        if collective.rank == 0:
            try:
                self._controller.decision_seconds = max(records[:, -1].max(), _LEAST_COST)
                decision = self._controller.decide(records[:, :-1])
                answer[1] = decision.steps_to_next or 0
                answer[2:] = decision.plan.batch_sizes
                self._decision = decision
            except RuntimeError as error:
                answer[0], self._failure = 1, error
        answer = collective.broadcast(answer)
        if threading.get_ident() != self._begun_in:
            self.seconds_beside = time.thread_time() - start
        return answer
