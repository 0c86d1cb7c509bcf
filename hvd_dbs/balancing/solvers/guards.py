"""Guards: solvers around a solver, which keep the plan or soften the change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, Solver, SolverState


class _Guard:
    """A solver around a solver, without a memory of its own."""

    solver: Solver

    def init(self) -> SolverState:
        """The state of the solver inside."""
        return self.solver.init()


class DeadBand(_Guard):
    """Keeps the plan unless some rank's batch size would change by more than a part of it.

    Args:
        solver: The solver that is asked.
        band: Largest relative change that counts as none.

    References:
        Tyagi, Sharma, "OmniLearn", TPDS 2025, with a band of 5 %.
    """

    def __init__(self, solver: Solver, band: float = 0.05) -> None:
        if band < 0:
            raise ValueError(f"band={band} must not be negative.")
        self.solver = solver
        self.band = band

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


class MinimumGain(_Guard):
    """Keeps the plan unless the time saved is worth a switch.

    A switch costs once (a retrace, an autotune of kernels) and pays in each of the steps that
    the new plan is expected to last.

    Args:
        solver: The solver that is asked.
        gain: Least part of the step time to be saved.
        switch_seconds: What a switch costs.
        num_steps: Steps over which the cost has to be earned.
    """

    def __init__(
        self,
        solver: Solver,
        gain: float = 0.01,
        switch_seconds: float = 0.0,
        num_steps: int = 100,
    ) -> None:
        if not (gain >= 0 and switch_seconds >= 0 and num_steps >= 1):
            raise ValueError(
                f"gain={gain}, switch_seconds={switch_seconds}, num_steps={num_steps}: expected "
                f"neither to be negative, and at least one step."
            )
        self.solver = solver
        self.gain = gain
        self.switch_seconds = switch_seconds
        self.num_steps = num_steps

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The proposal of the solver inside, or the plan in force."""
        proposal, state = self.solver.solve(state, problem, curves)
        before = float(np.max(curves.seconds(problem.current.samples)))
        after = float(np.max(curves.seconds(proposal.plan.samples)))
        needed = self.gain * before + self.switch_seconds / self.num_steps
        if before - after > needed or proposal.plan == problem.current:
            return proposal, state
        reason = (
            f"{1000 * (before - after):.2f} ms a step would be gained, "
            f"{1000 * needed:.2f} ms are needed"
        )
        return replace(proposal, plan=problem.current, reason=reason), state


class LimitedChange(_Guard):
    """No rank's batch size changes by more than a part of it in one decision.

    The solver inside works within bounds that are tightened around the plan in force, so the
    sum stays exact and what one rank may not take goes to others. One unit is always allowed.

    Args:
        solver: The solver that is asked.
        most: Largest relative change.
    """

    def __init__(self, solver: Solver, most: float = 0.5) -> None:
        if not most > 0:
            raise ValueError(f"most={most} must be positive.")
        self.solver = solver
        self.most = most

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The best plan near the plan in force."""
        unit = problem.bounds.multiple_of
        low, high = problem.bounds.in_units(problem.global_batch_size)
        units = np.asarray(problem.current.batch_sizes, dtype=np.int64) // unit
        step = np.maximum(np.floor(self.most * units), 1).astype(np.int64)
        near_low = np.maximum(low, np.minimum(units - step, high)) * unit
        near_high = np.minimum(high, np.maximum(units + step, low)) * unit
        near = Bounds(tuple(near_low.tolist()), tuple(near_high.tolist()), unit)
        return self.solver.solve(state, replace(problem, bounds=near), curves)
