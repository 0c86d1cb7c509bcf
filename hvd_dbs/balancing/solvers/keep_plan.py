"""Keeps the plan, and looks as rarely as changes allow: for jobs that are only observed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState

_MEMORY = 0.3
"""Weight of the last round: a change is looked at for five rounds or so."""
_SHARE = 0.001
"""Part of the time that rounds may take: half of what nobody minds, 0.2 %, of which comparing paces
in each step takes the rest."""
_CHANGE, _STEPS_WHILE_CHANGING = 0.15, 5
"""From such a change of a rank's time on rounds are short: two of them have to show that a rank
fell."""


@dataclass(frozen=True)
class KeepPlan:
    """The plan in force, whatever the curves are.

    Rounds are 20 steps long, 5 after a rank's time has changed, and never cost more than 0.1 % of
    the time, journal and observers included.
    """

    def init(self) -> SolverState:
        """Nothing is known."""
        return {"seconds": []}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan in force, and when to look again."""
        now = curves.seconds(problem.current.samples)
        before = np.asarray(state["seconds"] or now, dtype=np.float64)
        is_changing = bool(np.any(np.abs(np.log(now / before)) >= _CHANGE))
        least = _STEPS_WHILE_CHANGING if is_changing else PRIORS.most_steps
        cost = problem.decision_seconds / float(np.max(now))
        steps = round(max(least, cost / _SHARE))
        seconds = (before ** (1 - _MEMORY) * now**_MEMORY).tolist()
        return Proposal(problem.current, "the job is observed", steps), {"seconds": seconds}
