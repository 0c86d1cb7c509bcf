"""Decisions of a running job: every rank measures, rank 0 decides, every rank knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_dbs.balancing import Controller, Decision, Measurement, Plan
from hvd_dbs.cluster.collective import Collective, Pending

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
    """One allgather of floats and one broadcast of integers, on their way while training goes on.

    Every rank calls `gather`, then `finish`. A step of training between the calls gives the
    exchange time to end behind it, so that nobody waits; without one, it is waited for.

    Args:
        collective: The job.
        controller: This rank's controller.
        measurement: What this rank measured, one row.
        cost_seconds: What a round costs this rank.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        measurement: Measurement,
        cost_seconds: float = 0.0,
    ) -> None:
        self._collective, self._controller = collective, controller
        record = np.append(controller.observe(measurement)[0], cost_seconds)
        self._records = collective.start_allgather(record)
        self._answer: Pending | None = None
        self._before = controller.plan
        self._decision: Decision | None = None
        self._failure: RuntimeError | None = None

    def gather(self) -> Pending:
        """Rank 0 decides and lets the others know; harmless if it has."""
        if self._answer is None:
            records = self._records.result()
            # Status, steps to the next decision (0: not said), local batch sizes.
            answer = np.zeros(2 + self._collective.size, dtype=np.int64)
            if self._collective.rank == 0:
                self._before = self._controller.plan
                try:
                    self._controller.decision_seconds = max(records[:, -1].max(), _LEAST_COST)
                    decision = self._controller.decide(records[:, :-1])
                    answer[1] = decision.steps_to_next or 0
                    answer[2:] = decision.plan.batch_sizes
                    self._decision = decision
                except RuntimeError as error:
                    answer[0], self._failure = 1, error
            self._answer = self._collective.start_broadcast(answer)
        return self._answer

    def finish(self) -> Agreed:
        """Every rank takes over the plan.

        Raises:
            RuntimeError: On all ranks, if the strategy broke an invariant.
        """
        status, steps_to_next, *batch_sizes = self.gather().result().tolist()
        if status:
            raise self._failure or RuntimeError(
                "the strategy broke an invariant; rank 0 says which."
            )
        due = steps_to_next or None
        if self._decision is not None:
            return Agreed(self._before, self._decision, due)
        before, plan = self._controller.plan, Plan(tuple(batch_sizes))
        self._controller.adopt(plan, due)
        return Agreed(before, Decision(plan, plan != before, reason="decided by rank 0"), due)
