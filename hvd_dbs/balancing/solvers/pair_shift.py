"""The solver of LB-BSP on GPUs: some samples from the straggler to the leader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState

_GAVE, _RECEIVED, _NEITHER = -1, 1, 0
"""What a rank did in its last move."""

_CHANGE = 0.25
"""A part of the first delta. Where evening a pair out takes more, some speed has changed: one rank
takes 1.13 times as long as the other, which the noise of a window does not explain."""


@dataclass(frozen=True)
class PairShift:
    """Moves delta samples from the slowest rank to the fastest that has room.

    Between two moves a window of rounds passes. As published, a move that takes an earlier one
    back is an oscillation: delta is halved and the window doubled.

    The paper's wording leaves the following open, so it is ours:

    - A move takes an earlier one back if the giver received and the receiver gave in the last move
      that each had a part in. If only one of them did, noise has picked the pair.
    - Delta can widen again: a move that goes on with earlier ones (the giver gave and the receiver
      received) doubles delta, up to the first one, and halves the window.
    - Where a pair is so far apart that evening it out takes a quarter of the first delta or more,
      some rank's speed has changed. The window ends at once, and delta and window begin anew.
    - The first delta is a quarter of an even share, a window has 1 to 16 rounds, and no move goes
      beyond what evens the two ranks out.

    Args:
        first_share: The first delta as a part of an even share.
        window: Rounds between two moves at the start.
        most_window: The longest window.

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), SoCC 2020, for GPU clusters.
    """

    first_share: float = 0.25
    window: int = 1
    most_window: int = 16

    def __post_init__(self) -> None:
        if not (self.first_share > 0 and 1 <= self.window <= self.most_window):
            raise ValueError(
                f"{self}: expected a positive first_share and 1 <= window <= most_window."
            )

    def init(self) -> SolverState:
        """No move yet."""
        return {"delta": None, "window": self.window, "waited": 0, "roles": []}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan with one pair changed, or the same."""
        state = {**state, "waited": state["waited"] + 1}
        unit = problem.bounds.multiple_of
        low, high = problem.bounds.in_units(problem.global_batch_size)
        units = np.asarray(problem.current.batch_sizes, dtype=np.int64) // unit
        samples = np.maximum(units * unit, 1).astype(np.float64)
        seconds = curves.seconds(samples)
        giver = int(np.argmax(np.where(units > low, seconds, -np.inf)))
        receiver = int(np.argmin(np.where(units < high, seconds, np.inf)))
        if units[giver] <= low[giver] or units[receiver] >= high[receiver]:
            return Proposal(problem.current, "no rank has room"), state
        first = self.first_share * problem.global_batch_size / unit / problem.current.size
        rates = seconds / samples * unit
        even = float(seconds[giver] - seconds[receiver]) / float(rates[giver] + rates[receiver])
        if state["delta"] is None or even >= max(_CHANGE * first, 1.0):
            state |= {"delta": max(1, int(first)), "window": self.window}
        if state["waited"] < state["window"]:
            held = f"round {state['waited']} of a window of {state['window']}"
            return Proposal(problem.current, held), state
        state |= {"waited": 0, "roles": state["roles"] or [_NEITHER] * len(units)}
        if even < 1:
            return Proposal(problem.current, "the pair is even to within one move"), state
        state |= self._adapted(state, giver, receiver, max(1, int(first)))
        room = min(units[giver] - low[giver], high[receiver] - units[receiver])
        moved = int(min(state["delta"], room, np.floor(even)))
        plan = _shifted(units, giver, receiver, moved, unit)
        roles = list(state["roles"])
        roles[giver], roles[receiver] = _GAVE, _RECEIVED
        reason = f"{moved * unit} samples from rank {giver} to rank {receiver}"
        return Proposal(plan, reason), {**state, "roles": roles}

    def _adapted(self, state: SolverState, giver: int, receiver: int, first: int) -> SolverState:
        """Delta and window, given what giver and receiver did in their last moves."""
        delta, window = state["delta"], state["window"]
        before = (state["roles"][giver], state["roles"][receiver])
        if before == (_RECEIVED, _GAVE):
            return {"delta": max(1, delta // 2), "window": min(2 * window, self.most_window)}
        if before == (_GAVE, _RECEIVED):
            return {"delta": min(2 * delta, first), "window": max(window // 2, self.window)}
        return {}


def _shifted(units: NDArray[np.int64], giver: int, receiver: int, moved: int, unit: int) -> Plan:
    """The plan after a move."""
    changed = units.copy()
    changed[giver] -= moved
    changed[receiver] += moved
    return Plan(tuple((changed * unit).tolist()))
