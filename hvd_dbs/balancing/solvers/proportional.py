"""The solver of DBS and LB-BSP: samples in proportion to speed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState


@dataclass(frozen=True)
class Proportional:
    """b_i = B v_i / sum(v), with the speed v_i = b_i / t_i(b_i) at the plan in force.

    References:
        Ye et al., "DBS", 2020, arXiv 2007.11831; Chen et al., "Semi-Dynamic Load Balancing"
        (LB-BSP), SoCC 2020, for CPU clusters.
    """

    def init(self) -> SolverState:
        """No memory."""
        return {}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan in proportion to speeds, within the bounds."""
        # A rank without samples has no speed of its own yet; one sample stands in for it.
        batch_sizes = np.maximum(problem.current.samples, 1.0)
        speeds = batch_sizes / curves.seconds(batch_sizes)
        return Proposal(problem.apportion(speeds)), state
