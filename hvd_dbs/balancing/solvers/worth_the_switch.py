"""Equal finish on curves that are known only where they were visited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.chance import (
    deviations,
    equal_by_chance,
    farthest_of,
    plainly_unequal,
)
from hvd_dbs.balancing.solvers.equal_finish import equal_finish, plan_within
from hvd_dbs.balancing.solvers.fewest_moves import with_fewest_moves
from hvd_dbs.balancing.solvers.foresight import foresee, no_foresight
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.visited_curves import VisitedCurves

_HOPE = 0.1
_HOPE_DECAY = 0.3
_GAIN = 0.005
_GAIN_GROWTH = 0.1
_EVEN_GAIN, _EVEN_SIGMAS = 0.02, 2.5
_CALM_GAIN, _MOST_CALM = 0.0005, 20
_ROUND, _ROUND_HOPE, _ROUND_NEAR, _ROUND_TRIALS = 16, 0.2, 0.15, 3
_MOST_RANKS_TO_TRY = 32
_THOUSANDS = 4096
"""From so many ranks on, the best plan is mostly chance, and only ranks surely late are moved."""
_SURE_SIGMAS, _MANY_CHANGED = 2.6, 0.02
"""A rank is surely late by so many deviations, with an even split by those that one is left for;
where more than this part of the ranks has another
pace, it is not chance that moves the plan."""
_NEW_PACE, _SETTLING = 0.05, 0.2
_NOISE_GAIN = 1.0
_MOST_GROWTH = 1.3
_ROUNDS_OF_UNREST, _ROUNDS_TO_KNOW_NOISE = 5, 4


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
    moving. Nothing moves where the ranks differ no more than noise explains (`chance`). When a
    rank's pace or the step time turns out another (over 5 %), the machines have changed and the
    gain starts again.

    Where steps keep taking longer than promised, because some rank becomes slow again and again,
    ranks count as slower than usual, unless they are slower already (`foresight`).

    From 4,096 ranks on, a move leaves all ranks as they are that are not surely late
    (`with_fewest_moves`).

    With curves other than `VisitedCurves` only the second kind exists.
    """

    def init(self) -> SolverState:
        """Nothing tried."""
        return {
            "changes": 0,
            "trials": 0,
            "round_trials": 0,
            "calm": 0,
            "settled_seconds": None,
            "unrest": 0,
            "promised_seconds": None,
            **no_foresight(),
            "odd_rank": -1,
        }

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """A trial, a move, or the plan in force."""
        visited = curves if isinstance(curves, VisitedCurves) else None
        many = problem.current.size > _MOST_RANKS_TO_TRY
        tries = not many
        if visited is not None:
            seconds = visited.seconds(problem.current.samples)
            relative = seconds / np.median(seconds)
            nothing = _nothing_to_find(state, problem, visited, relative)
            odd_rank = int(np.argmax(np.abs(relative - 1.0)))
            # Among many ranks some step is always odd by accident: the same rank has to be twice.
            even = bool(np.ptp(problem.current.samples) == 0)
            new = even and many and odd_rank != state["odd_rank"]
            state = {**state, "odd_rank": odd_rank}
            if nothing or (new and not plainly_unequal(visited, relative)):
                calm = state["calm"] + 1
                reason = (
                    f"step {1000 * np.max(seconds):.1f} ms; no rank differs more than noise does"
                )
                proposal = Proposal(problem.current, reason)
                return proposal, {**state, "calm": calm, "settled_seconds": None}
            changed = bool(np.any(visited.unrest > 1))
            state = {**state, "unrest": max(0, state["unrest"] - 1)}
            if changed:
                state = {**state, "changes": 0, "unrest": _ROUNDS_OF_UNREST}
        now = _step(curves, problem.current.samples)
        settled = state["settled_seconds"]
        if settled is not None and abs(now - settled) > _NEW_PACE * settled:
            lasting = ("unrest", *no_foresight())
            state = {**self.init(), **{name: state[name] for name in lasting}}
        at_least = None
        if visited is not None:
            at_least = _surely(visited, seconds, even)
            state, slowed = foresee(state, visited, problem.current.samples, now)
            if slowed is not None:
                visited = visited.guarded(problem.current.samples, slowed)
                now = max(now, float(np.max(slowed)))
                at_least = None  # Most ranks count as slowed down, however they are doing.
        gain = _GAIN * (1 + _GAIN_GROWTH * state["changes"])
        gain += _CALM_GAIN * min(state["calm"], _MOST_CALM)
        if visited is not None and state["changes"] == 0:
            # The slowest of many equal ranks is slow by chance.
            gain += _NOISE_GAIN * farthest_of(problem.current.size) * visited.typical_spread
        if bool(np.ptp(problem.current.samples) == 0):
            gain = max(gain, _EVEN_GAIN)
        target = now * (1 - gain)

        best, best_seconds = problem.current, now
        if visited is None:
            best = equal_finish(problem, curves)
            best_seconds = _step(curves, best.samples)
        elif not tries or state["unrest"] or not _arrived(visited, problem.current):
            tries = False
            expected = visited.expected(_MOST_GROWTH if many else np.inf)
            if (move := plan_within(problem, expected, (0.0, target))) is not None:
                if at_least is not None:
                    move = with_fewest_moves(problem, expected, move, at_least)
                best, best_seconds = move, _step(expected, move.samples)
        else:
            hope = _HOPE / (1 + _HOPE_DECAY * state["trials"])
            hopeful = visited.hopeful(hope)
            hoped = plan_within(problem, hopeful, (0.0, target))
            if hoped is not None:
                hoped_seconds, expected = _step(hopeful, hoped.samples), visited.expected()
                between = (hoped_seconds, hoped_seconds / (1 - hope))
                best = equal_finish(problem, expected, between)
                best_seconds = _step(expected, best.samples)
                promising = hoped_seconds < min(now, best_seconds) * (1 - gain)
                if promising and not np.all(visited.visited(hoped.samples)):
                    reason = "a trial: untried batch sizes may be faster"
                    return _change(hoped, reason, state, curves, "trials")
        if best_seconds < target:
            # Part of what plans promise is not kept, so it is no reason to ask sooner.
            believed = float(np.log(now / best_seconds)) - state["risk"]
            proposal, state = _change(best, "", state, curves)
            return replace(proposal, gain=believed), state
        if visited is not None and tries and state["round_trials"] < _ROUND_TRIALS:
            near = visited.hopeful_at(_round_numbers(problem.current.samples), _ROUND_HOPE)
            hoped = plan_within(problem, near, (0.0, target))
            if hoped is not None and not np.all(visited.visited(hoped.samples)):
                reason = f"a trial: multiples of {_ROUND} may be faster"
                return _change(hoped, reason, state, curves, "round_trials")
        calm = state["calm"] + 1
        settled = now if settled is None else settled + _SETTLING * (now - settled)
        return (
            Proposal(
                problem.current,
                f"step {1000 * now:.1f} ms; no plan promises {gain:.1%} less",
            ),
            {
                **state,
                "calm": calm,
                "settled_seconds": settled,
                "promised_seconds": _step(curves, problem.current.samples),
            },
        )


def _nothing_to_find(
    state: SolverState, problem: Problem, visited: VisitedCurves, relative: NDArray[np.float64]
) -> bool:
    """Whether the times differ as noise alone makes them differ, or noise is not known yet.

    With few ranks only an even split is left in peace: elsewhere trials may find something.
    """
    even = bool(np.ptp(problem.current.samples) == 0)
    if not even and problem.current.size <= _MOST_RANKS_TO_TRY:
        return False
    if equal_by_chance(visited, relative, _EVEN_SIGMAS if even else 1.0):
        return True
    return even and state["calm"] < _ROUNDS_TO_KNOW_NOISE and not plainly_unequal(visited, relative)


def _surely(
    visited: VisitedCurves, seconds: NDArray[np.float64], even: bool
) -> NDArray[np.float64] | None:
    """Times less what noise may have added, shape `[size]`; None where all ranks may be moved."""
    if seconds.size < _THOUSANDS or np.mean(visited.unrest > 1) >= _MANY_CHANGED:
        return None
    sigmas = _EVEN_SIGMAS + farthest_of(seconds.size) if even else _SURE_SIGMAS
    return np.asarray(seconds / (1 + sigmas * deviations(visited)))


def _arrived(visited: VisitedCurves, plan: Plan) -> bool:
    """Whether the plan has been seen: a trial that is still on its way needs no other."""
    return bool(np.all(visited.visited(plan.samples)))


def _change(
    plan: Plan, reason: str, state: SolverState, curves: TimeCurves, kind: str | None = None
) -> tuple[Proposal, SolverState]:
    state = {**state, "changes": state["changes"] + 1, "calm": 0, "settled_seconds": None}
    state["promised_seconds"] = _step(curves, plan.samples)
    if kind is not None:
        state[kind] += 1
    return Proposal(plan, reason), state


def _round_numbers(batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiples close to each batch size, below and above, shape `[size, 2]`; NaN for none."""
    below = np.floor(batch_sizes / _ROUND) * _ROUND
    both = np.column_stack([below, below + _ROUND])
    distance = np.abs(both - batch_sizes[:, np.newaxis])
    near = distance <= np.maximum(_ROUND_NEAR * batch_sizes, 1.0)[:, np.newaxis]
    return np.where(near, both, np.nan)


def _step(curves: TimeCurves, batch_sizes: NDArray[np.float64]) -> float:
    return float(np.max(curves.seconds(batch_sizes)))
