"""The solver of LB-BSP on GPUs: some samples from the straggler to the leader."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState


class PairShift:
    """Moves delta samples from the slowest rank to the fastest that has room.

    Between two moves a window of rounds passes. A move that takes the last one back (the last
    receiver is now the straggler, or the last giver the leader) is an oscillation: delta is
    halved and the window doubled. The first delta (a quarter of an even share), the bounds of
    the window and that no move goes beyond what evens the two ranks out are ours.

    Args:
        first_share: The first delta as a part of an even share.
        window: Rounds between two moves at the start.
        most_window: The longest window.

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), SoCC 2020, for GPU clusters.
    """

    def __init__(self, first_share: float = 0.25, window: int = 1, most_window: int = 16) -> None:
        if not (first_share > 0 and 1 <= window <= most_window):
            raise ValueError(
                f"first_share={first_share}, window={window}, most_window={most_window}: expected "
                f"a positive share and 1 <= window <= most_window."
            )
        self.first_share = first_share
        self.window = window
        self.most_window = most_window

    def init(self) -> SolverState:
        """No move yet."""
        return {"delta": None, "window": self.window, "waited": 0, "giver": None, "receiver": None}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan with one pair changed, or the same."""
        state = {**state, "waited": state["waited"] + 1}
        if state["waited"] < state["window"]:
            held = f"round {state['waited']} of a window of {state['window']}"
            return Proposal(problem.current, held), state
        unit = problem.bounds.multiple_of
        low, high = problem.bounds.in_units(problem.global_batch_size)
        units = np.asarray(problem.current.batch_sizes, dtype=np.int64) // unit
        samples = np.maximum(units * unit, 1).astype(np.float64)
        seconds = curves.seconds(samples)
        giver = int(np.argmax(np.where(units > low, seconds, -np.inf)))
        receiver = int(np.argmin(np.where(units < high, seconds, np.inf)))
        if units[giver] <= low[giver] or units[receiver] >= high[receiver]:
            return Proposal(problem.current, "no rank has room"), state
        if state["delta"] is None:
            share = problem.global_batch_size / unit / problem.current.size
            state["delta"] = max(1, int(self.first_share * share))
        if giver == state["receiver"] or receiver == state["giver"]:
            state["delta"] = max(1, state["delta"] // 2)
            state["window"] = min(2 * state["window"], self.most_window)
            state["giver"] = state["receiver"] = None
        rates = seconds / samples * unit
        even = (seconds[giver] - seconds[receiver]) / (rates[giver] + rates[receiver])
        room = min(units[giver] - low[giver], high[receiver] - units[receiver])
        moved = int(min(state["delta"], room, np.floor(even)))
        state["waited"] = 0
        if moved < 1:
            return Proposal(problem.current, "the pair is even to within one move"), state
        units[giver] -= moved
        units[receiver] += moved
        state["giver"], state["receiver"] = giver, receiver
        reason = f"{moved * unit} samples from rank {giver} to rank {receiver}"
        return Proposal(Plan(tuple((units * unit).tolist())), reason), state
