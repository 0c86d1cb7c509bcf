"""What a surprise is: noise, a change of pace, or a pause."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.time_model import ModelState

_STEPS_WITHOUT_PAUSES, _MOST_LONGER = 3, 3.0
"""Rounds of so many steps leave out those that take so many times as long (`typical_seconds`)."""


def weigh(
    state: ModelState, surprise: Rows, known: Rows, unknown: Rows, steps: Rows
) -> tuple[Rows, Rows, Rows]:
    """Chances of the three, by Bayes' rule; factors common to all are left out.

    Args:
        state: "noise", "events", "suspect" of `Posterior`.
        surprise: Log of the time over what was expected.
        known: Its variance where the pace is the same.
        unknown: Its variance where the pace has changed.
        steps: Steps of the round.

    Returns:
        Chances that it is noise, a change of pace, a pause; shapes `[rows]`.
    """
    z, rounds = surprise, state["noise"][:, 1]
    changes, pauses, lasted = state["events"].T
    # Noise whose variance is learnt has the tails of Student's distribution.
    noise = -0.5 * (rounds + 1) * np.log1p(z**2 / known / rounds) - 0.5 * np.log(known)
    rate = steps * (changes + 0.5) / (lasted + 0.5 / PRIORS.change_rate)
    change = np.log(rate) - 0.5 * z**2 / unknown - 0.5 * np.log(unknown)
    # Or the pace changed in the last round already, which looked like a pause.
    suspect, chance = state["suspect"].T
    again = (
        np.log(np.maximum(chance, 1e-300)) - 0.5 * (z - suspect) ** 2 / known - 0.5 * np.log(known)
    )
    change = np.logaddexp(change, np.where(chance > 0, again, -np.inf))
    # One of the steps took `longer` times as long.
    rate = np.minimum(steps * (pauses + 0.5) / (lasted + 0.5 / PRIORS.pause_rate), 1.0)
    ratio = np.exp(np.clip(z, 0, 50))
    longer = 1 + steps * (ratio - 1)
    off = (np.log(longer) - PRIORS.pause_log) / PRIORS.pause_sd
    pause = np.log(rate * steps * ratio / longer / PRIORS.pause_sd) - 0.5 * off**2
    can_be = (z > 0) & ((steps < _STEPS_WITHOUT_PAUSES) | (longer < _MOST_LONGER))
    logs = np.stack([noise, change, np.where(can_be, pause, -np.inf)])
    chances = np.exp(logs - logs.max(axis=0))
    chances /= chances.sum(axis=0)
    return chances[0], chances[1], chances[2]
