"""What a rank's pace usually is, and the spells in which it is slower."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.time_models.time_model import ModelState

_SLOW_SIGMAS, _FAST_SIGMAS, _UNUSUAL = 2.5, 4.0, 0.1
"""A round is unusual beyond so many deviations, and 10 %."""
_SLOW_STEPS, _FAST_STEPS = 300.0, 2.0
"""Steps after which a slower pace, or a faster one, is the usual one."""
_MOST_STEPS = 200.0
_SLOW, _KEEP = 0.2, 0.998
_ROUNDS_BEFORE = 3


def no_pace(num_rows: int) -> ModelState:
    """Before the first round: nothing is usual, and no rank has been slow.

    "usual" is log t - 0.9 log b of a rank that nothing disturbs, NaN before it is known;
    "usual_steps", how many steps that counts for; "unusual_steps", for how many the pace has been
    another one, negative where it is faster. "slower" is the log of how much longer than usual the
    rank takes, as far as its pace was found to have changed, now and after each of the last rounds;
    "spell", the most of it while it is over 20 %, and "past_slower", the most in spells that are
    over.
    """
    return {
        "usual": np.full(num_rows, np.nan),
        "usual_steps": np.zeros(num_rows),
        "unusual_steps": np.zeros(num_rows),
        "slower": np.zeros((num_rows, 1 + _ROUNDS_BEFORE)),
        "spell": np.zeros(num_rows),
        "past_slower": np.zeros(num_rows),
    }


def usual_pace(
    state: ModelState,
    pace: NDArray[np.float64],
    steps: NDArray[np.float64],
    usable: NDArray[np.bool_],
) -> ModelState:
    """The entries "usual", "usual_steps" and "unusual_steps" after a round.

    The mean over the last 200 steps or so, without the rounds that differ from it by more than
    noise does: slower ones will pass, and a single faster one is chance. Where 300 steps have been
    slower, or two faster, theirs is the usual pace from then on. If it was faster, the steps before
    were disturbed.

    Args:
        state: What `no_pace` names, and "noise", the variance of a step's logarithm.
        pace: log t - 0.9 log b of the round, shape `[rows]`.
        steps: Steps of the round, shape `[rows]`.
        usable: Where there is a timing at all, shape `[rows]`.
    """
    off, counted, lasted = pace - state["usual"], state["usual_steps"], state["unusual_steps"]
    sigma = np.sqrt(state["noise"] * (1.0 / steps + 1.0 / np.maximum(counted, 1.0)))
    slow = off > np.maximum(_SLOW_SIGMAS * sigma, _UNUSUAL)
    fast = off < -np.maximum(_FAST_SIGMAS * sigma, _UNUSUAL)
    lasted = np.where(slow, np.maximum(lasted, 0.0) + steps, 0.0)
    lasted = np.where(fast, np.minimum(state["unusual_steps"], 0.0) - steps, lasted)
    new = ~np.isfinite(state["usual"]) | (lasted > _SLOW_STEPS) | (lasted <= -_FAST_STEPS)
    counted = np.where(new, 0.0, counted)
    usual = np.where(new, pace, state["usual"] + off * steps / (counted + steps))
    told = usable & np.isfinite(pace)
    folded = told & (new | ~(slow | fast))
    return {
        "usual": np.where(folded, usual, state["usual"]),
        "usual_steps": np.where(folded, np.minimum(counted + steps, _MOST_STEPS), counted),
        "unusual_steps": np.where(told, np.where(new, 0.0, lasted), state["unusual_steps"]),
    }


def slow_spells(
    state: ModelState, change: NDArray[np.float64], steps: NDArray[np.float64]
) -> ModelState:
    """The other entries after a round.

    A slow batch size is no spell: changes are told where a rank has been before. If a rank becomes
    faster than ever, it was slow until then. A slowdown that stays becomes usual, and was no spell.

    Args:
        state: What `no_pace` names.
        change: Log of the factor by which the pace has changed in the round, shape `[rows]`.
        steps: Steps of the round, shape `[rows]`.
    """
    slower = np.maximum(state["slower"][:, -1] + change, 0.0) * _KEEP**steps
    slow, spell = slower > _SLOW, state["spell"]
    over = ~slow & (spell > 0) & (change < 0)
    past = state["past_slower"]
    return {
        "slower": np.column_stack([state["slower"][:, 1:], slower]),
        "spell": np.where(slow, np.maximum(spell, slower), 0.0),
        "past_slower": np.where(over, np.maximum(past, spell), past),
    }
