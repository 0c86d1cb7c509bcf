"""What a surprise is: noise, a jump of the curve, a change of pace, a return, or a pause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.order_statistics import shortest_below_mean
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.event_counts import chance_of_first, rates_of
from hvd_dbs.balancing.time_models.time_model import ModelState


@dataclass(frozen=True)
class Round:
    """A round of each rank. All fields have shape `[rows]`.

    Attributes:
        log_seconds: Of a step.
        excess: Log of its mean step over its shortest one, NaN where that is not known.
        steps: Its steps.
        is_same: Whether the batch size is that of the round before.
        is_first: Whether it is of a first step, which kernels may have tuned themselves in.
    """

    log_seconds: Rows
    excess: Rows
    steps: Rows
    is_same: NDArray[np.bool_]
    is_first: NDArray[np.bool_]


@dataclass(frozen=True)
class Surprise:
    """A round's log time over what was expected. All fields have shape `[rows]`.

    Attributes:
        z: Log of the time over what was expected.
        variance: Its variance where the pace is the same.
        jump_variance: Its variance where the curve has a jump at this batch size.
        change_variance: Its variance where the pace has changed.
        usual_z: Log of the time over what the rank takes at its baseline speed; of ranks that are
            not slow it does not matter.
        usual_variance: Its variance where the rank is back at it; likewise.
        is_new: Whether the batch size is new to the rank.
    """

    z: Rows
    variance: Rows
    jump_variance: Rows
    change_variance: Rows
    usual_z: Rows
    usual_variance: Rows
    is_new: NDArray[np.bool_]


def weigh(state: ModelState, seen: Round, surprise: Surprise, is_slow: NDArray[np.bool_]) -> Rows:
    """Chances of the five, by Bayes' rule; factors common to all are left out.

    Args:
        state: "noise", "events", "rates", "first_steps", "suspect" of `Posterior`.
        seen: The round.
        surprise: How it differs from what was expected.
        is_slow: Which ranks can return to their baseline speed, shape `[rows]`.

    Returns:
        Chances that it is noise, a jump of the curve, a change of pace, a return, a pause; shape
        `[5, rows]`.
    """
    z, known, steps = surprise.z, surprise.variance, seen.steps
    squares, rounds = state["noise"].T
    # Machines differ by more than the prior says: one degree of freedom before anything is seen.
    freedom = rounds - PRIORS.noise_rounds + 1
    change_rate, pause_rate = rates_of(state)
    changed = np.log(-np.expm1(-steps * change_rate))
    change = changed + _normal(z, surprise.change_variance)
    jump = np.where(
        surprise.is_new, np.log(PRIORS.jump_rate) + _normal(z, surprise.jump_variance), -np.inf
    )
    # Or it was so in the last round already, which looked like a pause.
    suspect, noise, *chances = state["suspect"].T
    chances[0] = chances[0] * seen.is_same  # A jump is one of a batch size.
    again = _normal(z - suspect, known + noise)
    with np.errstate(divide="ignore"):
        jump, change = (
            np.logaddexp(log, again + np.log(chance))
            for log, chance in zip((jump, change), chances, strict=True)
        )
    back = changed + _student(surprise.usual_z, surprise.usual_variance, freedom)
    # One of the steps took `longer` times as long.
    paused = np.minimum(steps * pause_rate, 1.0)
    paused = np.where(seen.is_first, chance_of_first(state), paused)
    ratio = np.exp(np.clip(z, 0, 50))
    longer = 1 + steps * (ratio - 1)
    off = (np.log(longer) - PRIORS.pause_log) / PRIORS.pause_sd
    pause = np.log(paused * steps * ratio / longer / PRIORS.pause_sd) - 0.5 * off**2
    # The other steps took what they usually do, and the shortest of them shows it.
    noise_only = squares / rounds
    excess = seen.excess - np.sqrt(noise_only) * shortest_below_mean(steps)
    pause += np.nan_to_num(
        _student(z - excess, known + noise_only, freedom) - _student(excess, noise_only, freedom)
    )
    logs = np.stack(
        [
            _student(z, known, freedom),
            jump,
            change,
            np.where(is_slow, back, -np.inf),
            np.where(z > 0, pause, -np.inf),
        ]
    )
    chances = np.exp(logs - logs.max(axis=0))
    return np.asarray(chances / chances.sum(axis=0))


def _normal(z: Rows, variance: Rows) -> Rows:
    return np.asarray(-0.5 * z**2 / variance - 0.5 * np.log(variance))


def _student(z: Rows, variance: Rows, freedom: Rows) -> Rows:
    """Noise whose variance is learnt has the tails of Student's distribution.

    Its constant is the normal one times exp(-1 / (4 freedom)), to 3 %.
    """
    tails = -0.5 * (freedom + 1) * np.log1p(z**2 / variance / freedom)
    return np.asarray(tails - 0.5 * np.log(variance) - 0.25 / freedom)
