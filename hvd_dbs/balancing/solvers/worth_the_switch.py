"""Equal finish on curves that are known only where they were visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.candidates import Candidate, Search, step_seconds
from hvd_dbs.balancing.solvers.chance import (
    deviations,
    equal_by_chance,
    farthest_of,
    plainly_unequal,
)
from hvd_dbs.balancing.solvers.equal_finish import equal_finish
from hvd_dbs.balancing.solvers.foresight import foresee, no_foresight
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.visited_curves import VisitedCurves

_GAIN = 0.005
_GAIN_GROWTH = 0.1
_EVEN_GAIN, _EVEN_SIGMAS = 0.02, 2.5
_CALM_GAIN, _MOST_CALM = 0.0005, 20
_ROUND_TRIALS = 3
_MOST_RANKS_TO_TRY = 32
_THOUSANDS = 4096
"""From so many ranks on, the best plan is mostly chance, and only ranks surely late are moved."""
_SURE_SIGMAS, _MANY_CHANGED = 2.6, 0.02
"""A rank is surely late by so many deviations (with an even split, by `_EVEN_SIGMAS`). Where more
than this part of the ranks has another pace, it is not chance that moves the plan."""
_REFINED_ROUNDS, _REFINED_ROUNDS_OF_MANY = 60, 20
_REFINED_GAIN, _REFINED_SIGMAS = 0.002, 1.0
_NEW_PACE, _SETTLING = 0.05, 0.2
_NOISE_GAIN = 1.0
_MOST_GROWTH = 1.3
_ROUNDS_OF_UNREST, _ROUNDS_TO_KNOW_NOISE = 5, 4


class WorthTheSwitch:
    """Equal finish that tries what may be faster, and stops trying when it has paid enough.

    Four plans are candidates, in this order:

    1. *Trial*: the best plan if each batch size not visited yet were faster than the curves say,
       by 10 % at first and by less after each trial. A trial visits a new point, so its hope is
       used up; trials end by themselves. Jobs of over 32 ranks make none: with so many, a trial's
       step is as long as the unluckiest rank makes it.
    2. *Move*: the best plan as the curves say.
    3. *Round numbers*: up to three times, the best plan if multiples of 16 close to the batch
       sizes in use were 20 % faster, as they are where kernels work in tiles.
    4. *Refinement*: once a plan has lasted 60 rounds (20 in jobs without trials), and twice as
       long each time after, the best plan in which only ranks move that are late beyond doubt. A
       gain of 0.2 % is enough for it: what has lasted is likely to last as long again.

    Each of the others has to promise more than the plan in force by a gain that starts at 0.5 %,
    grows with every change made and with the rounds that the plan has lasted, so noise cannot keep
    plans moving. Nothing moves where the ranks differ no more than noise explains (`chance`). When
    a rank's pace or the step time turns out another (over 5 %), the machines have changed and the
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
            "refined": 0,
        }

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """A trial, a move, a refinement, or the plan in force."""
        visited = curves if isinstance(curves, VisitedCurves) else None
        if visited is not None:
            state, is_peace = _looked_around(state, problem, visited)
            if is_peace:
                seconds = step_seconds(visited, problem.current)
                reason = f"step {1000 * seconds:.1f} ms; no rank differs more than noise does"
                calm = state["calm"] + 1
                state = {**state, "calm": calm, "settled_seconds": None}
                return Proposal(problem.current, reason), state
        seen = now = step_seconds(curves, problem.current)
        settled = state["settled_seconds"]
        if settled is not None and abs(seen - settled) > _NEW_PACE * settled:
            lasting = ("unrest", *no_foresight())
            state = {**self.init(), **{name: state[name] for name in lasting}}
        if visited is None:
            gain = _least_gain(state, problem, None)
            best = equal_finish(problem, curves)
            best_seconds = step_seconds(curves, best)
            found = Candidate(best, best_seconds) if best_seconds < now * (1 - gain) else None
        else:
            known, at_least = visited, _surely(problem, visited)
            state, slowed = foresee(state, visited, problem, now)
            if slowed is not None:
                visited = visited.guarded(problem.current.samples, slowed)
                now = max(now, float(np.max(slowed)))
                at_least = None  # Most ranks count as slowed down, however they are doing.
            gain = _least_gain(state, problem, visited)
            found = _found(state, Search(problem, visited, known, now, gain), at_least)
        if found is not None:
            return _changed(found, state, curves, now)
        settled = state["settled_seconds"]
        settled = seen if settled is None else settled + _SETTLING * (seen - settled)
        reason = f"step {1000 * seen:.1f} ms; no plan promises {gain:.1%} less"
        return Proposal(problem.current, reason), {
            **state,
            "calm": state["calm"] + 1,
            "settled_seconds": settled,
            "promised_seconds": seen,
        }


def _looked_around(
    state: SolverState, problem: Problem, visited: VisitedCurves
) -> tuple[SolverState, bool]:
    """The state that knows of changes of pace, and whether there is nothing to find."""
    seconds = visited.seconds(problem.current.samples)
    relative = seconds / np.median(seconds)
    odd_rank = int(np.argmax(np.abs(relative - 1.0)))
    # Among many ranks some step is always odd by accident: the same rank has to be twice.
    many = problem.current.size > _MOST_RANKS_TO_TRY
    new = many and _is_even(problem) and odd_rank != state["odd_rank"]
    nothing = _nothing_to_find(state, problem, visited, relative)
    state = {**state, "odd_rank": odd_rank}
    if nothing or (new and not plainly_unequal(visited, relative)):
        return state, True
    if np.any(visited.unrest > 1):
        return {**state, "changes": 0, "unrest": _ROUNDS_OF_UNREST}, False
    return {**state, "unrest": max(0, state["unrest"] - 1)}, False


def _least_gain(state: SolverState, problem: Problem, visited: VisitedCurves | None) -> float:
    """By which part a step has to be shorter for a change."""
    gain: float = _GAIN * (1 + _GAIN_GROWTH * state["changes"])
    gain += _CALM_GAIN * min(state["calm"], _MOST_CALM)
    if visited is not None and state["changes"] == 0:
        # The slowest of many equal ranks is slow by chance.
        gain += _NOISE_GAIN * farthest_of(problem.current.size) * visited.typical_spread
    return max(gain, _EVEN_GAIN) if _is_even(problem) else gain


def _found(
    state: SolverState, search: Search, at_least: NDArray[np.float64] | None
) -> Candidate | None:
    """The first candidate that promises enough."""
    current = search.problem.current
    many = current.size > _MOST_RANKS_TO_TRY
    # A trial that is still on its way needs no other.
    has_arrived = not many and bool(np.all(search.seen.visited(current.samples)))
    if state["unrest"] or state["refined"] or not has_arrived:
        found = search.move(_MOST_GROWTH if many else np.inf, at_least)
    else:
        found = search.trial_or_move(state["trials"])
        if found is None and state["round_trials"] < _ROUND_TRIALS:
            found = search.round_numbers()
    is_guarded = search.visited is not search.seen
    rounds = max(_REFINED_ROUNDS_OF_MANY if many else _REFINED_ROUNDS, 2 * state["refined"])
    if found is None and state["calm"] >= rounds and not (is_guarded or _is_even(search.problem)):
        found = search.refinement(_REFINED_GAIN, _REFINED_SIGMAS)
    return found


def _nothing_to_find(
    state: SolverState, problem: Problem, visited: VisitedCurves, relative: NDArray[np.float64]
) -> bool:
    """Whether the times differ as noise alone makes them differ, or noise is not known yet.

    With few ranks only an even split is left in peace: elsewhere trials may find something.
    """
    even = _is_even(problem)
    if not even and problem.current.size <= _MOST_RANKS_TO_TRY:
        return False
    if equal_by_chance(visited, relative, _EVEN_SIGMAS if even else 1.0):
        return True
    return even and state["calm"] < _ROUNDS_TO_KNOW_NOISE and not plainly_unequal(visited, relative)


def _surely(problem: Problem, visited: VisitedCurves) -> NDArray[np.float64] | None:
    """Times less what noise may have added, shape `[size]`; None where all ranks may be moved."""
    seconds = visited.seconds(problem.current.samples)
    if seconds.size < _THOUSANDS or np.mean(visited.unrest > 1) >= _MANY_CHANGED:
        return None
    sigmas = _SURE_SIGMAS
    if _is_even(problem):
        sigmas = _EVEN_SIGMAS + farthest_of(seconds.size)
    return np.asarray(seconds / (1 + sigmas * deviations(visited)))


def _changed(
    found: Candidate, state: SolverState, curves: TimeCurves, now: float
) -> tuple[Proposal, SolverState]:
    calm = state["calm"]
    state = {**state, "changes": state["changes"] + 1, "calm": 0, "refined": 0}
    state |= {"settled_seconds": None, "promised_seconds": step_seconds(curves, found.plan)}
    if found.kind == "refined":
        return Proposal(found.plan, found.reason), {**state, "calm": calm, "refined": calm}
    if found.kind is not None:
        state[found.kind] += 1
        return Proposal(found.plan, found.reason), state
    # Part of what plans promise is not kept, so it is no reason to ask sooner.
    believed = float(np.log(now / found.seconds)) - state["risk"]
    return Proposal(found.plan, found.reason, gain=believed), state


def _is_even(problem: Problem) -> bool:
    return bool(np.ptp(problem.current.samples) == 0)
