"""A guard: the plan is kept where batch sizes would hardly change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, Solver, SolverState


@dataclass(frozen=True)
class DeadBand:
    """Keeps the plan unless some rank's batch size would change by more than a part of it.

    Args:
        solver: The solver that is asked.
        band: Largest relative change that counts as none.

    References:
        Tyagi, Sharma, "OmniLearn", TPDS 2025, with a band of 5 %.
    """

    solver: Solver
    band: float = 0.05

    def __post_init__(self) -> None:
        if self.band < 0:
            raise ValueError(f"band={self.band} must not be negative.")

    def init(self) -> SolverState:
        """The state of the solver inside."""
        return self.solver.init()

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The proposal of the solver inside, or the plan in force."""
        proposal, state = self.solver.solve(state, problem, curves)
        before = problem.current.samples
        change = float(np.max(np.abs(proposal.plan.samples - before) / np.maximum(before, 1.0)))
        if change > self.band:
            return proposal, state
        reason = f"largest change {change:.1%} is within the dead band of {self.band:.1%}"
        return replace(proposal, plan=problem.current, reason=reason), state
