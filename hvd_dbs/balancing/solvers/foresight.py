"""How slow ranks are expected to be, some of which become slower than usual again and again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import SolverState
from hvd_dbs.balancing.visited_curves import VisitedCurves

_LEVELS = (0.0, 0.5, 0.75, 1.0)
_LOSS_WEIGHT, _BETTER, _LEAST_BETTER = 0.02, 0.9, 0.01
_SPELL_RISES, _SPELL_FALLS = 0.1, 0.01
_RISK_WEIGHT, _LEAST_RISK = 0.05, 0.125
_SLOWNESS_RISES, _FIRST_RISES, _RISES_UNTIL, _GUARD = 0.03, 0.2, 10.0, 0.9
"""While there is a guard, steps are as slow as it assumes: with 0.9 of the slowness it can fall. It
falls at once, since a guard costs in each step, and having none only now and then. It rises slowly,
but sooner at first, when nothing is known of it."""


def no_foresight() -> SolverState:
    """Nothing has happened that could happen again."""
    return {
        "risk": 0.0,
        "slowness": 0.0,
        "foreseen": 0,
        "spell": 0.0,
        "losses": [0.0] * len(_LEVELS),
    }


def foresee(
    state: SolverState, visited: VisitedCurves, problem: Problem, now: float
) -> tuple[SolverState, NDArray[np.float64] | None]:
    """What ranks are to be planned with that may become slower before the plan holds.

    A plan comes a few steps after what it answers, so where ranks become slow every few steps
    there is always one that keeps all others waiting. A rank that is taken to be slow beforehand
    has fewer samples and delays nobody; that costs some speed in each step. There are two ways:

    - *Ranks that have been slow before* are taken to be as slow as ranks are in such spells, or by
      1/2 or 3/4 of that. Whether one of these pays is known from the past: each round tells how
      long its step would have been had the plan in force been made so, against one made by what
      ranks took at the time. The best by the mean over 50 rounds or so is chosen, if it would have
      lost a tenth less, and 1 % of the time.
    - *All ranks*, where that does not pay and steps take 13 % longer than promised on average.
      By how much is learnt: nearly as much as steps take longer than with ranks that are all as
      usual, so no plan changes what it is measured against.

    Args:
        state: What `no_foresight` names, and "promised_seconds", what the plan in force promised.
        visited: What is known of the ranks.
        problem: The plan in force, and its bounds.
        now: Seconds of a step with it.

    Returns:
        The state, and the seconds that ranks are to be taken to need at least, shape `[size]`;
        None for what they need now. A rank that cannot have fewer samples is taken as it is.
    """
    usual = visited.usual_log_seconds(problem.current.samples)
    can_give = _can_give(problem)
    had = (visited.spells.past > 0) & can_give
    state = _with_losses(state, visited, had)
    state = _with_slowness(_with_risk(state, now), float(np.log(now) - np.max(usual)))
    losses = state["losses"]
    best = int(np.argmin(losses))
    if losses[best] < _BETTER * losses[0] - _LEAST_BETTER:
        return state, np.where(had, np.exp(usual + _LEVELS[best] * state["spell"]), 0.0)
    if state["risk"] > _LEAST_RISK:
        return state, np.where(can_give, np.exp(usual + _GUARD * state["slowness"]), 0.0)
    return state, None


def _can_give(problem: Problem) -> NDArray[np.bool_]:
    """Which ranks could have fewer samples, shape `[size]`."""
    unit = problem.bounds.multiple_of
    low, _ = problem.bounds.in_units(problem.global_batch_size)
    return np.asarray(problem.current.samples >= (low + 1) * unit)


def _with_losses(
    state: SolverState, visited: VisitedCurves, guarded: NDArray[np.bool_]
) -> SolverState:
    """The state that knows what steps lose with ranks that were slow taken to be slow.

    In logarithms, against a step of ranks that are never slow: what the latest rank is late by,
    and what all the others get more to do.
    """
    now, before = visited.spells.now, visited.spells.before
    speeds, part_before = np.exp(-visited.usual), np.exp(-before)
    had, had_not = np.flatnonzero(guarded), ~guarded
    late = float(np.max((now - before)[had_not], initial=0.0))
    speed = float(np.sum((speeds * part_before)[had_not]))
    all_speeds, losses = float(np.sum(speeds)), []
    now_had, before_had, speeds_had = (of.take(had) for of in (now, before, speeds))
    part_had = part_before.take(had)
    for level, loss in zip(_LEVELS, state["losses"], strict=True):
        least = level * state["spell"]
        latest = max(late, float(np.max(now_had - np.maximum(before_had, least), initial=0.0)))
        left = speed + float(np.sum(speeds_had * np.minimum(part_had, np.exp(-least))))
        losses.append(loss + _LOSS_WEIGHT * (latest - float(np.log(left / all_speeds)) - loss))
    if not np.all(np.isfinite(losses)):
        return state
    slowest = float(np.max(now))
    weight = _SPELL_RISES if slowest > state["spell"] else _SPELL_FALLS
    spell = state["spell"] + weight * (slowest - state["spell"])
    return {**state, "losses": losses, "spell": spell}


def _with_risk(state: SolverState, now: float) -> SolverState:
    """The state that knows whether the step now is as short as was promised."""
    if state["promised_seconds"] is None:
        return state
    missed = max(0.0, float(np.log(now / state["promised_seconds"])))
    return {**state, "risk": state["risk"] + _RISK_WEIGHT * (missed - state["risk"])}


def _with_slowness(state: SolverState, seen: float) -> SolverState:
    """The state that knows how much longer, in logarithms, steps take than usual ones at least."""
    rises = max(_SLOWNESS_RISES, _FIRST_RISES / (1 + state["foreseen"] / _RISES_UNTIL))
    slower = max(0.0, seen) - state["slowness"]
    slowness = state["slowness"] + min(slower, rises * slower)
    return {**state, "slowness": slowness, "foreseen": state["foreseen"] + 1}
