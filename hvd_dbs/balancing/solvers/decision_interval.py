"""After how many steps the next decision is due: as often as it pays, and no more."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import FIRST_ROUND_STEPS, Problem
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.solvers.solver import Proposal, Solver, SolverState


@dataclass(frozen=True)
class DecisionInterval:
    """A solver around a solver that also says after how many steps to ask it again.

    With a decision each k steps, deciding costs c / k of a step. Improvements worth g step times
    arise in each step, and are found k / 2 steps late on average. The sum c / k + g k / 2
    is least at k = sqrt(2 c / g). c is what a decision costs, in step times; g is learnt: what
    changes of plan in the last 30 steps or so promise, or, once the next decision has looked at
    them again, have gained. One that was made for a pause and is taken back gains nothing in all.

    So decisions follow upon each other while plans get better or machines change, and become rare
    when all is quiet: at most 20 steps apart, or as many as make them cost 0.2 % of the time.

    Formula and figures are ours.

    Args:
        solver: The solver that is asked.
    """

    solver: Solver

    def init(self) -> SolverState:
        """A start from a plan that is not good yet."""
        return {
            "gain": PRIORS.gain_first,
            "promised": 0.0,
            "replaced": None,
            "steps": FIRST_ROUND_STEPS,
            "solver": self.solver.init(),
        }

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The proposal of the solver inside, and when to ask again."""
        proposal, inside = self.solver.solve(state["solver"], problem, curves)
        now = float(np.max(curves.seconds(problem.current.samples)))
        gain = state["gain"]
        if state["replaced"] is not None:
            before = float(np.max(curves.seconds(np.array(state["replaced"], dtype=np.float64))))
            gain += float(np.log(before / now)) - state["promised"]
        gain *= float(np.exp(-state["steps"] / PRIORS.gain_memory))
        replaced, promised = None, 0.0
        if proposal.plan != problem.current:
            after = float(np.max(curves.seconds(proposal.plan.samples)))
            replaced = list(problem.current.batch_sizes)
            promised = max(0.0, float(np.log(now / after)))
        gain += promised
        cost = problem.decision_seconds / now
        best = np.sqrt(2 * cost * PRIORS.gain_memory / max(gain, 1e-9))
        steps = round(min(max(best, 1.0), max(PRIORS.most_steps, cost / PRIORS.decision_share)))
        state = dict(gain=gain, promised=promised, replaced=replaced, steps=steps, solver=inside)
        return replace(proposal, steps_to_next=steps), state
