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
    # Status, steps to the next decision (0: not said), local batch sizes.
    answer = np.zeros(2 + collective.size, dtype=np.int64)
    decision: Decision | None = None
    failure: RuntimeError | None = None
    if collective.rank == 0:
        try:
            decision = controller.decide(records)
            answer[1] = decision.steps_to_next or 0
            answer[2:] = decision.plan.batch_sizes
        except RuntimeError as error:
            answer[0], failure = 1, error
    status, steps_to_next, *batch_sizes = collective.broadcast(answer).tolist()
    if status:
        raise failure or RuntimeError("the strategy broke an invariant; rank 0 says which.")
    plan = Plan(tuple(batch_sizes))
    controller.adopt(plan, steps_to_next or None)
    return decision or Decision(
        plan, plan != before, reason="decided by rank 0", steps_to_next=steps_to_next or None
    )
