"""How often the pace of a rank changes, and how often it pauses: counts with a memory."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.time_model import ModelState


def count_events(state: ModelState, change: Rows, back: Rows, pause: Rows, steps: Rows) -> None:
    """Counts a round; a change that the next round takes back was a pause.

    Args:
        state: Its "events", changes, pauses and steps, are changed.
        change: Chance that the pace has changed, shape `[rows]`.
        back: Chance that it has returned to the baseline speed, same shape.
        pause: Chance that a step has paused, same shape.
        steps: Of the round, same shape.
    """
    was_pause = back * (state["rounds"] - state["slow_since"] <= 1)
    # So may the first round have been.
    was_pause = np.where(state["rounds"] == 2, change, was_pause)
    keep = np.exp(-steps * PRIORS.change_rate)[:, np.newaxis]
    taken_back = np.where(state["rounds"] == 2, 1, 2) * was_pause
    new = np.column_stack([change + back - taken_back, pause + was_pause, steps])
    state["events"] = np.maximum(state["events"] * keep + new, 0.0)


def life_of(state: ModelState) -> Rows:
    """Steps that the pace of each rank is expected to last, shape `[rows]`."""
    changes, _, steps = state["events"].T
    return np.asarray((steps + 1 / PRIORS.change_rate) / (changes + 1))
