"""Plans that may be worth a switch: moves, and trials of batch sizes that nobody has run yet."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.chance import deviations
from hvd_dbs.balancing.solvers.equal_finish import equal_finish, plan_within
from hvd_dbs.balancing.solvers.fewest_moves import with_fewest_moves
from hvd_dbs.balancing.visited_curves import VisitedCurves

_HOPE, _HOPE_DECAY = 0.1, 0.3
_ROUND, _ROUND_HOPE, _ROUND_NEAR = 16, 0.2, 0.15


@dataclass(frozen=True)
class Candidate:
    """A plan that promises enough.

    Attributes:
        plan: The plan.
        seconds: Of its step, as the curves say.
        reason: Why it is tried; empty for a move.
        kind: Which trials it counts among, or "refined"; None for a move.
    """

    plan: Plan
    seconds: float
    reason: str = ""
    kind: str | None = None


@dataclass(frozen=True)
class Search:
    """Where plans are looked for, and what they have to promise.

    Attributes:
        problem: The sum, the bounds, the plan in force.
        visited: What ranks are taken to need.
        seen: What they have been seen to need, without what a guard assumes.
        now: Seconds of a step with the plan in force.
        gain: By which part of `now` a step has to be shorter.
    """

    problem: Problem
    visited: VisitedCurves
    seen: VisitedCurves
    now: float
    gain: float

    @property
    def target(self) -> float:
        """Seconds that a step may take at most."""
        return self.now * (1 - self.gain)

    def move(self, growth: float, at_least: NDArray[np.float64] | None) -> Candidate | None:
        """The best plan as the curves say.

        Args:
            growth: See `VisitedCurves.largest_after`.
            at_least: Seconds with the plan in force, less what noise may have added, where only
                ranks surely late are to be moved, shape `[size]`; None: all may be.
        """
        most = self.visited.largest_after(growth)
        plan = plan_within(self.problem, self.visited, (0.0, self.target), most)
        if plan is not None and at_least is not None:
            plan = with_fewest_moves(self.problem, self.visited, plan, at_least)
        return None if plan is None else self._if_short(plan)

    def trial_or_move(self, num_trials: int) -> Candidate | None:
        """The best plan were batch sizes not visited faster than the curves say, or a move.

        Args:
            num_trials: How many there were; each leaves less to hope for.
        """
        hope = _HOPE / (1 + _HOPE_DECAY * num_trials)
        hopeful = self.visited.hopeful(hope)
        hoped = plan_within(self.problem, hopeful, (0.0, self.target))
        if hoped is None:
            return None
        hoped_seconds = step_seconds(hopeful, hoped)
        deadlines = (hoped_seconds, hoped_seconds / (1 - hope))
        best = equal_finish(self.problem, self.visited, deadlines)
        best_seconds = step_seconds(self.visited, best)
        promising = hoped_seconds < min(self.now, best_seconds) * (1 - self.gain)
        if promising and self._is_new(hoped):
            reason = "a trial: untried batch sizes may be faster"
            return Candidate(hoped, hoped_seconds, reason, "trials")
        return self._if_short(best)

    def round_numbers(self) -> Candidate | None:
        """The best plan were multiples of 16 close to the batch sizes in use much faster."""
        near = self.visited.hopeful_at(_round_numbers(self.problem.current.samples), _ROUND_HOPE)
        hoped = plan_within(self.problem, near, (0.0, self.target))
        if hoped is None or not self._is_new(hoped):
            return None
        reason = f"a trial: multiples of {_ROUND} may be faster"
        return Candidate(hoped, step_seconds(near, hoped), reason, "round_trials")

    def refinement(self, gain: float, sigmas: float) -> Candidate | None:
        """The best plan in which only ranks that are late beyond doubt have less to do.

        Args:
            gain: By which part a step has to be shorter than it certainly is now.
            sigmas: By how many deviations a rank's time may be noise.
        """
        at_least = self.visited.seconds(self.problem.current.samples)
        at_least = at_least / (1 + sigmas * deviations(self.visited))
        now = float(np.max(at_least))
        found = replace(self, now=now, gain=gain).move(np.inf, at_least)
        if found is None:
            return None
        return replace(found, reason="a refinement of what has lasted", kind="refined")

    def _if_short(self, plan: Plan) -> Candidate | None:
        seconds = step_seconds(self.visited, plan)
        return Candidate(plan, seconds) if seconds < self.target else None

    def _is_new(self, plan: Plan) -> bool:
        return not np.all(self.seen.visited(plan.samples))


def step_seconds(curves: TimeCurves, plan: Plan) -> float:
    """Seconds of a step with a plan: the slowest rank's."""
    return float(np.max(curves.seconds(plan.samples)))


def _round_numbers(batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiples close to each batch size, below and above, shape `[size, 2]`; NaN for none."""
    below = np.floor(batch_sizes / _ROUND) * _ROUND
    both = np.column_stack([below, below + _ROUND])
    distance = np.abs(both - batch_sizes[:, np.newaxis])
    near = distance <= np.maximum(_ROUND_NEAR * batch_sizes, 1.0)[:, np.newaxis]
    return np.where(near, both, np.nan)
