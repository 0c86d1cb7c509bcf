"""What a surprise is: noise, a jump of the curve, a change of pace, a return, or a pause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.order_statistics import QUARTILE, below_mean, quartile_variance
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.event_counts import chance_of_first, rates_of
from hvd_dbs.balancing.time_models.noise import noise_of, within_rounds
from hvd_dbs.balancing.time_models.time_model import ModelState


@dataclass(frozen=True)
class Round:
    """A round of each rank. All fields have shape `[rows]`.

    Attributes:
        batch_sizes: In samples.
        log_seconds: Of a step.
        excess: Log of its mean step over their lower quartile, NaN where that is not known.
        spread: Log of their median over their lower quartile, likewise.
        steps: Its steps.
        is_first: Whether it is of a first step, which kernels may have tuned themselves in.
    """

    batch_sizes: Rows
    log_seconds: Rows
    excess: Rows
    spread: Rows
    steps: Rows
    is_first: NDArray[np.bool_]


@dataclass(frozen=True)
class Surprise:
    """A round's log time over what was expected. All fields have shape `[rows]`.

    Attributes:
        z: Log of the time over what was expected.
        variance: Its variance where neither curve nor pace has changed.
        baseline_z: Log of the time over what the rank takes at its baseline speed.
        baseline_variance: Its variance where the rank is back at it; infinite of ranks that are not
            slow.
        is_new: Whether the batch size is new to the rank, after its first round.
    """

    z: Rows
    variance: Rows
    baseline_z: Rows
    baseline_variance: Rows
    is_new: NDArray[np.bool_]


def weigh(state: ModelState, seen: Round, surprise: Surprise) -> Rows:
    """Chances of the five, by Bayes' rule; factors common to all are left out.

    Args:
        state: "noise", "spread", "events", "rates", "first_steps", "suspect" of `Posterior`.
        seen: The round.
        surprise: How it differs from what was expected.

    Returns:
        Chances that it is noise, a jump of the curve, a change of pace, a return, a pause; shape
        `[5, rows]`.
    """
    z, known, steps = surprise.z, surprise.variance, seen.steps
    freedom = _freedom(state)
    change_rate, _ = rates_of(state)
    changed = np.log(-np.expm1(-steps * change_rate))
    # What is learnt is how often slow periods begin and end. To be faster than ever is rarer.
    is_faster = (z < 0) & np.isinf(surprise.baseline_variance)
    rate = np.where(is_faster, np.minimum(PRIORS.change_rate, change_rate), change_rate)
    change = np.log(-np.expm1(-steps * rate)) + _normal(z, known + PRIORS.change_sd**2)
    jump = np.log(PRIORS.jump_rate) + _normal(z, known + PRIORS.jump_sd**2)
    jump = np.where(surprise.is_new, jump, -np.inf)
    # Or it was so in the last round already, which looked like a pause.
    last, last_z, last_noise, jumped, was_changed = state["suspect"].T
    is_same = last == seen.batch_sizes
    # What is not known of a batch size is the same in both rounds.
    again = _normal(z - last_z, np.where(is_same, noise_of(state, steps), known) + last_noise)
    with np.errstate(divide="ignore"):
        jump = np.logaddexp(jump, again + np.log(jumped * is_same))  # One is of a batch size.
        change = np.logaddexp(change, again + np.log(was_changed))
    noise = _student(z, known, freedom)
    back = changed + _student(surprise.baseline_z, surprise.baseline_variance, freedom)
    pause = np.where(z > 0, _pause(state, seen, z, known), -np.inf)
    logs = np.stack([noise, jump, change, back, pause])
    chances = np.exp(logs - logs.max(axis=0))
    return np.asarray(chances / chances.sum(axis=0))


def _pause(state: ModelState, seen: Round, z: Rows, known: Rows) -> Rows:
    """Log density of a surprise that is a pause."""
    steps, (_, rate) = seen.steps, rates_of(state)
    rate = np.where(seen.is_first, chance_of_first(state), np.minimum(rate, 1.0))
    # One of the steps took `longer` times as long.
    ratio = np.exp(np.clip(z, 0, 50))
    longer = 1 + steps * (ratio - 1)
    one = np.log(np.minimum(steps * rate, 1.0) * steps * ratio / longer)
    one += _size_of_pause(np.log(longer))
    # The other steps took what they usually do, and their lower quartile shows it.
    within = within_rounds(state)
    excess = seen.excess - within * below_mean(steps, QUARTILE)
    variance = within**2 * quartile_variance(steps)
    freedom = _freedom(state)
    one += np.nan_to_num(
        _student(z - excess, known + variance, freedom) - _student(excess, variance, freedom)
    )
    # Or each of them did.
    each = np.where(steps > 1, steps * np.log(rate) + _size_of_pause(z), -np.inf)
    return np.asarray(np.logaddexp(one, each))


def _freedom(state: ModelState) -> Rows:
    """Machines differ by more than the prior says: one degree of it before anything is seen."""
    return np.asarray(state["noise"][:, 1] - PRIORS.noise_rounds + 1)


def _size_of_pause(longer: Rows) -> Rows:
    return _normal(longer - PRIORS.pause_log, PRIORS.pause_sd**2)


def _normal(z: Rows, variance: Rows | float) -> Rows:
    return np.asarray(-0.5 * z**2 / variance - 0.5 * np.log(variance))


def _student(z: Rows, variance: Rows, freedom: Rows) -> Rows:
    """Noise whose variance is learnt has the tails of Student's distribution.

    Its constant is the normal one times exp(-1 / (4 freedom)), to 3 %.
    """
    tails = -0.5 * (freedom + 1) * np.log1p(z**2 / variance / freedom)
    return np.asarray(tails - 0.5 * np.log(variance) - 0.25 / freedom)
