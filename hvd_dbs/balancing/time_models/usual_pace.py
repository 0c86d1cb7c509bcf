"""What a rank's pace usually is, and the spells in which it is slower."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.time_models.time_model import ModelState

_FAR_SIGMAS, _UNUSUAL = 4.0, 0.1
_KEEP, _FASTER_WEIGHT, _ORDINARY_WEIGHT = 0.998, 0.3, 0.03
_SLOW = 0.2
_ROUNDS_BEFORE = 3


def no_pace(num_rows: int) -> ModelState:
    """Before the first round: nothing is usual, and no rank has been slow.

    "usual" is log t - 0.9 log b of a rank that nothing disturbs, NaN before it is known; "slower",
    the log of how much longer than usual the rank takes, as far as its pace was found to have
    changed, now and after each of the last rounds; "spell", the most of it while it is over 20 %,
    and "past_slower", the most in spells that are over.
    """
    return {
        "usual": np.full(num_rows, np.nan),
        "slower": np.zeros((num_rows, 1 + _ROUNDS_BEFORE)),
        "spell": np.zeros(num_rows),
        "past_slower": np.zeros(num_rows),
    }


def usual_pace(
    state: ModelState,
    pace: NDArray[np.float64],
    steps: NDArray[np.float64],
    usable: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """The entry "usual" after a round, shape `[rows]`.

    The mean over rounds that differ from it by no more than noise does. A much slower round counts
    little, since it will pass. A much faster one counts a lot: the rounds before were disturbed.

    Args:
        state: What `no_pace` names, and "noise", the variance of a step's logarithm.
        pace: log t - 0.9 log b of the round, shape `[rows]`.
        steps: Steps of the round, shape `[rows]`.
        usable: Where there is a timing at all, shape `[rows]`.
    """
    off = pace - state["usual"]
    ordinary = np.abs(off) < np.maximum(_FAR_SIGMAS * np.sqrt(state["noise"] / steps), _UNUSUAL)
    unusual = np.where(off < 0, _FASTER_WEIGHT, 1.0 - _KEEP**steps)
    weight = np.where(ordinary, _ORDINARY_WEIGHT, unusual)
    moved = np.where(np.isfinite(state["usual"]), state["usual"] + weight * off, pace)
    return np.where(usable & np.isfinite(pace), moved, state["usual"])


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
