"""One decision of a running job: every rank measures, rank 0 decides, every rank knows."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Controller, Decision, Measurement, Plan
from hvd_dbs.cluster.collective import Collective


def decide_together(
    collective: Collective, controller: Controller, measurement: Measurement
) -> Decision:
    """Runs a round on all ranks: one allgather of floats, one broadcast of integers.

    Args:
        collective: The job.
        controller: This rank's controller; it holds the new plan afterwards.
        measurement: What this rank measured, one row.

    Returns:
        Rank 0's decision; the reason is known on rank 0 alone.

    Raises:
        RuntimeError: On all ranks, if the strategy broke an invariant.
    """
    before = controller.plan
    records = collective.allgather(controller.observe(measurement)[0])
    answer = np.zeros(1 + collective.size, dtype=np.int64)
    decision: Decision | None = None
    failure: RuntimeError | None = None
    if collective.rank == 0:
        try:
            decision = controller.decide(records)
            answer[1:] = decision.plan.batch_sizes
        except RuntimeError as error:
            answer[0], failure = 1, error
    answer = collective.broadcast(answer)
    if answer[0]:
        raise failure or RuntimeError("the strategy broke an invariant; rank 0 says which.")
    plan = Plan(tuple(answer[1:].tolist()))
    controller.adopt(plan)
    return decision or Decision(plan, plan != before, reason="decided by rank 0")
