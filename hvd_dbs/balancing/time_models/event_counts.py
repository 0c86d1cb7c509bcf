"""How often the pace of a rank changes, how often it pauses, and what first steps cost: counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.time_model import ModelState


def count_events(state: ModelState, change: Rows, back: Rows, pause: Rows, steps: Rows) -> None:
    """Counts a round; a rank that is slow for one round has paused, whatever that looked like.

    Args:
        state: Its "events" (changes, pauses and steps) and "last_change" are changed. "mean" is
            that after the round; "peak", "slow_since" and "last_change" are those before it.
        change: Chance that the pace has changed, shape `[rows]`.
        back: Chance that it has returned to the baseline speed, same shape.
        pause: Chance that a step has paused, same shape.
        steps: Of the round, same shape.
    """
    has_begun = (state["peak"] > 0) & (state["rounds"] - state["slow_since"] <= 1)
    slower = state["mean"][:, -1]  # What follows the points is the slowness.
    is_over = has_begun & ((slower <= PRIORS.slow) | (back > 0.5))
    was_pause = np.where(is_over, state["last_change"], 0.0)
    changes = change + np.where(is_over, -was_pause, back)
    # A change in the second round was a pause of the first.
    first = np.where(state["rounds"] == 2, change, 0.0)
    keep = np.exp(-steps * PRIORS.change_rate)[:, np.newaxis]
    new = np.column_stack([changes - first, pause + was_pause + first, steps])
    state["events"] = np.maximum(state["events"] * keep + new, 0.0)
    state["last_change"] = change


def pooled_rates(events: Rows) -> Rows:
    """Changes and pauses a step of all ranks, shape `[2]`.

    Args:
        events: What `count_events` has counted of each, shape `[ranks, 3]`.
    """
    changes, pauses, steps = events.sum(axis=0)
    priors = np.array([PRIORS.change_rate, PRIORS.pause_rate])
    return np.asarray((np.array([changes, pauses]) + 0.5) / (steps + 0.5 / priors))


def rates_of(state: ModelState) -> tuple[Rows, Rows]:
    """Changes and pauses a step of each rank, drawn to the pooled rates; shapes `[rows]`."""
    events, steps = state["events"][:, :2], state["events"][:, 2:]
    change_rate, pause_rate = ((events + 0.5) / (steps + 0.5 / state["rates"])).T
    return change_rate, pause_rate


def own_pause_rate(state: ModelState) -> Rows:
    """Pauses a step of each rank by its own steps alone, shape `[rows]`."""
    _, pauses, steps = state["events"].T
    return np.asarray((pauses + 0.5) / (steps + 0.5 / PRIORS.pause_rate))


def count_first_steps(
    state: ModelState, is_first: NDArray[np.bool_], held_up: Rows, seconds: Rows
) -> None:
    """Counts first steps at a batch size, in which kernels may have tuned themselves.

    Args:
        state: Its "first_steps", those held up, all, and seconds lost in the former, are changed.
        is_first: Whether the round was such a step, shape `[rows]`.
        held_up: Chance that it took longer than it will later, same shape.
        seconds: By how much, same shape.
    """
    held_up = is_first * held_up
    state["first_steps"] = state["first_steps"] + np.column_stack(
        [held_up, is_first, held_up * seconds]
    )


def chance_of_first(state: ModelState) -> Rows:
    """Chance that a first step at a batch size is held up, shape `[rows]`."""
    held_up, number, _ = state["first_steps"].T
    return np.asarray((held_up + 0.5) / (number + 1))


def cost_of_first(state: ModelState) -> Rows:
    """Seconds by which a first step is expected to take longer than later ones, `[rows]`."""
    held_up, _, seconds = state["first_steps"].T
    return np.asarray(chance_of_first(state) * seconds / np.maximum(held_up, 1e-9))


def life_of(events: Rows) -> Rows:
    """Steps that the pace of each rank is expected to last, shape `[rows]`.

    Args:
        events: What `count_events` has counted, shape `[rows, 3]`.
    """
    changes, _, steps = events.T
    return np.asarray((steps + 1 / PRIORS.change_rate) / (changes + 1))
