"""When ranks are slow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.time_model import ModelState


def no_periods(num_rows: int) -> ModelState:
    """Before the first round.

    "slow_since": round in which the last period began, "peak": the most that the rank was
    slower in the one under way;
    "slow_periods": number of those that are over, sum of their peaks, steps outside of them.
    """
    return {
        "slow_since": np.zeros(num_rows),
        "peak": np.zeros(num_rows),
        "slow_periods": np.zeros((num_rows, 3)),
    }


def note_pace(state: ModelState, slower: Rows, steps: Rows) -> NDArray[np.bool_]:
    """Which ranks are at their baseline speed or hardly slower, shape `[rows]`.

    Args:
        state: What `no_periods` names, and "rounds".
        slower: Log seconds above the baseline speed, shape `[rows]`.
        steps: Steps of the round, shape `[rows]`.
    """
    is_slow, was_slow = slower > PRIORS.slow, state["peak"] > 0
    begins = is_slow & ~was_slow
    state["slow_since"] = np.where(begins, state["rounds"], state["slow_since"])
    is_over = was_slow & ~is_slow & (state["rounds"] - state["slow_since"] > 1)
    new = np.column_stack([is_over, is_over * state["peak"], np.where(is_slow, 0.0, steps)])
    state["slow_periods"] = state["slow_periods"] + new
    state["peak"] = np.where(is_slow, np.maximum(state["peak"], slower), 0.0)
    return ~is_slow
