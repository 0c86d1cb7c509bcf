"""A plan is changed where that is worth more than it costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.solvers.equal_finish import equal_finish
from hvd_dbs.balancing.solvers.outlook import outlook
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState

_LEVELS = (0.5, 0.75, 1.0, 1.25)


class ValueOfChange:
    """Of a few plans the one of most value, or the plan in force."""

    def init(self) -> SolverState:
        """Nothing to remember."""
        return {}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan of most value."""
        if not isinstance(curves, PosteriorCurves):
            return self._sure(problem, curves), state
        believed = curves.shifted(_on_time(problem, curves))
        now = outlook(believed, problem.current, problem.current)
        slowest = int(np.argmax(believed.seconds(problem.current.samples)))
        life = float(believed.life[slowest])
        best, value, why, gain = problem.current, 0.0, "", 0.0
        for reason, plan in self._candidates(problem, believed):
            if plan == best:
                continue
            then = outlook(believed, plan, problem.current)
            worth = life * (now.later - then.later)
            worth -= PRIORS.reaction * max(then.now - now.now, 0.0) + PRIORS.switch
            if worth > value:
                best, value, why, gain = plan, worth, reason, now.now - then.now
        if best == problem.current:
            return Proposal(best, f"step {1000 * np.exp(now.now):.1f} ms; no change is worth it"), state
        return Proposal(best, f"{why}, worth {value:.1f} steps", gain=gain), state

    def _sure(self, problem: Problem, curves: TimeCurves) -> Proposal:
        plan = equal_finish(problem, curves)
        now, then = (float(np.max(curves.seconds(p.samples))) for p in (problem.current, plan))
        if PRIORS.first_life * np.log(now / then) > PRIORS.switch:
            return Proposal(plan)
        return Proposal(problem.current)

    def _candidates(self, problem: Problem, curves: PosteriorCurves) -> list[tuple[str, Plan]]:
        found = [("a move", equal_finish(problem, curves))]
        if problem.current.size <= 32:
            found.append(("a trial", equal_finish(problem, curves.hopeful(0.8, problem.current.samples))))
        if curves.periods.number.any():
            further = np.where(curves.periods.number > 0, 1.0, 0.0)
            sizes = further * (curves.periods.further() + curves.periods.slower)
            for level in _LEVELS:
                shift = np.maximum(level * sizes - curves.periods.slower, 0.0)
                found.append(("a guard", equal_finish(problem, curves.shifted(shift))))
        return found


def _on_time(problem: Problem, curves: PosteriorCurves) -> NDArray[np.float64]:
    """Log seconds by which each rank is taken to be nearer to the others than it was seen.

    First as if all had the same batch size, since machines are often equal; then with the plan in
    force, in which ranks were to finish together.
    """
    size = problem.current.size
    even = np.full(size, problem.global_batch_size / size)
    if np.max(np.abs(problem.current.samples / even - 1)) > PRIORS.unequal_sd:
        return np.zeros(size)
    return _shrunk(problem, curves, even, PRIORS.ranks_on_time * size)


def _shrunk(
    problem: Problem, curves: PosteriorCurves, samples: NDArray[np.float64], on_time: float
) -> NDArray[np.float64]:
    """Ranks take the same, up to what is not known of them, or are off by more.

    A mixture of two normal distributions, whose weight is learnt.
    """
    off = np.log(curves.seconds(samples))
    off = off - np.median(off)
    variance = curves.deviations(samples) ** 2
    known = np.minimum(variance, curves.deviations(problem.current.samples) ** 2)
    size, least = off.size, PRIORS.unequal_sd**2
    part, spread = (on_time + 0.5 * size) / (on_time + size), max(least, float(np.mean(off**2)))
    rounds = curves.rounds
    tails = 0.5 * (rounds + 1) * np.log1p(off**2 / variance / rounds)
    for _ in range(4):
        wide = spread + variance
        ratio = np.sqrt(variance / wide)
        ratio *= np.exp(np.clip(tails - 0.5 * off**2 / wide, -300, 300))
        unequal = 1 - part / (part + (1 - part) * ratio)
        part = (on_time + 0.5 + float(np.sum(1 - unequal))) / (on_time + 1.0 + size)
        more = float(np.sum(unequal * np.maximum(off**2 - variance, 0.0)))
        spread = max(least, more / max(float(np.sum(unequal)), 1e-9))
    seen = unequal * off * spread / wide
    # What is not known of other batch sizes is not moved by it.
    return np.asarray((seen - off) * known / variance)
