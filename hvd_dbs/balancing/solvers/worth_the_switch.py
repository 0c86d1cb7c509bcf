"""Equal finish on curves that are known only where they were visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.equal_finish import can_finish, equal_finish
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.visited_curves import VisitedCurves

_HOPE = 0.1
_HOPE_DECAY = 0.3
_GAIN = 0.005
_GAIN_GROWTH = 0.1
_CALM_GAIN, _MOST_CALM = 0.0005, 20
_ROUND, _ROUND_HOPE, _ROUND_NEAR, _ROUND_TRIALS = 16, 0.2, 0.15, 3
_MOST_RANKS_TO_TRY = 32
_NEW_PACE, _SETTLING = 0.05, 0.2
_NOISE_GAIN = 1.0
_CALM_ROUNDS, _IDLE_ROUNDS = 3, 50
STEPS_MOVING, STEPS_CALM, STEPS_IDLE = 1, 2, 5


class WorthTheSwitch:
    """Equal finish that tries what may be faster, and stops trying when it has paid enough.

    Three plans are candidates, in this order:

    1. *Trial*: the best plan if each batch size not visited yet were faster than the curves say,
       by 10 % at first and by less after each trial. A trial visits a new point, so its hope is
       used up; trials end by themselves. Jobs of over 32 ranks make none: with so many, a trial's
       step is as long as the unluckiest rank makes it.
    2. *Move*: the best plan as the curves say.
    3. *Round numbers*: up to three times, the best plan if multiples of 16 close to the batch
       sizes in use were 20 % faster, as they are where kernels work in tiles.

    Each has to promise more than the plan in force by a gain that starts at 0.5 %, grows with
    every change made and with the rounds that the plan has lasted, so noise cannot keep plans
    moving; before the first change it also exceeds what the slowest of equal ranks shows by
    chance. When the step time turns out another than the one settled at (over 5 %), the machines
    have changed and all this starts again.

    It wants to be asked again after one step while plans change or a rank's time was so far off
    that the next one tells an outlier from a change; after two when calm, so that a change of the
    machines is seen soon; after five when nothing has happened for long.

    With curves other than `VisitedCurves` only the second kind exists.
    """

    def init(self) -> SolverState:
        """Nothing tried."""
        return {"changes": 0, "trials": 0, "round_trials": 0, "calm": 0, "settled_seconds": None}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """A trial, a move, or the plan in force."""
        now = _step(curves, problem.current.samples)
        settled = state["settled_seconds"]
        if settled is not None and abs(now - settled) > _NEW_PACE * settled:
            state = self.init()
        gain = _GAIN * (1 + _GAIN_GROWTH * state["changes"])
        gain += _CALM_GAIN * min(state["calm"], _MOST_CALM)
        visited = curves if isinstance(curves, VisitedCurves) else None
        if visited is not None and state["changes"] == 0:
            # The slowest of many equal ranks is slow by chance.
            extreme = np.sqrt(2 * np.log(problem.current.size + 1))
            gain += _NOISE_GAIN * extreme * float(np.median(visited.spread))
        target = now * (1 - gain)

        tries = visited is not None and problem.current.size <= _MOST_RANKS_TO_TRY
        best, best_seconds = problem.current, now
        if visited is None:
            best, best_seconds = _solve(problem, curves)
        elif not tries:
            expected = visited.expected()
            if can_finish(problem, expected, target):
                best, best_seconds = _solve(problem, expected, (0.0, target))
        else:
            hope = _HOPE / (1 + _HOPE_DECAY * state["trials"])
            hopeful = visited.hopeful(hope)
            if can_finish(problem, hopeful, target):
                hoped, hoped_seconds = _solve(problem, hopeful, (0.0, target))
                between = (hoped_seconds, hoped_seconds / (1 - hope))
                best, best_seconds = _solve(problem, visited.expected(), between)
                promising = hoped_seconds < min(now, best_seconds) * (1 - gain)
                if promising and not np.all(visited.visited(hoped.samples)):
                    reason = "a trial: untried batch sizes may be faster"
                    return _change(hoped, reason, state, "trials")
        if best_seconds < target:
            return _change(best, "", state)
        if visited is not None and tries and state["round_trials"] < _ROUND_TRIALS:
            near = visited.hopeful_at(_round_numbers(problem.current.samples), _ROUND_HOPE)
            if can_finish(problem, near, target):
                hoped, hoped_seconds = _solve(problem, near, (0.0, target))
                if hoped_seconds < target and not np.all(visited.visited(hoped.samples)):
                    reason = f"a trial: multiples of {_ROUND} may be faster"
                    return _change(hoped, reason, state, "round_trials")
        calm = state["calm"] + 1
        settled = now if settled is None else settled + _SETTLING * (now - settled)
        return (
            Proposal(
                problem.current,
                f"step {1000 * now:.1f} ms; no plan promises {gain:.1%} less",
                _due(visited, calm),
            ),
            {**state, "calm": calm, "settled_seconds": settled},
        )


def _due(visited: VisitedCurves | None, calm: int) -> int:
    """Steps until the next decision where the plan is kept."""
    if visited is not None and np.any(visited.suspect != 0):
        return STEPS_MOVING
    if calm < _CALM_ROUNDS:
        return STEPS_MOVING
    return STEPS_CALM if calm < _IDLE_ROUNDS else STEPS_IDLE


def _solve(
    problem: Problem, curves: TimeCurves, deadlines: tuple[float, float] = (0.0, np.inf)
) -> tuple[Plan, float]:
    plan = equal_finish(problem, curves, deadlines)
    return plan, _step(curves, plan.samples)


def _change(
    plan: Plan, reason: str, state: SolverState, kind: str | None = None
) -> tuple[Proposal, SolverState]:
    state = {**state, "changes": state["changes"] + 1, "calm": 0, "settled_seconds": None}
    if kind is not None:
        state[kind] += 1
    return Proposal(plan, reason, STEPS_MOVING), state


def _round_numbers(batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiples close to each batch size, below and above, shape `[size, 2]`; NaN for none."""
    below = np.floor(batch_sizes / _ROUND) * _ROUND
    both = np.column_stack([below, below + _ROUND])
    distance = np.abs(both - batch_sizes[:, np.newaxis])
    near = distance <= np.maximum(_ROUND_NEAR * batch_sizes, 1.0)[:, np.newaxis]
    return np.where(near, both, np.nan)


def _step(curves: TimeCurves, batch_sizes: NDArray[np.float64]) -> float:
    return float(np.max(curves.seconds(batch_sizes)))
