"""When ranks are slower than usual, and the load that announces it."""

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
    "load": -log(1 - c) when steady; "load_jump", "load_shift": a jump whose effect is awaited, and
    the change of pace seen since; "load_sums": what jumps were followed by.
    """
    names = ("slow_since", "peak", "load_jump", "load_shift")
    return {
        **{name: np.zeros(num_rows) for name in names},
        "slow_periods": np.zeros((num_rows, 3)),
        "load": np.full(num_rows, np.nan),
        "load_sums": np.zeros((num_rows, 2)),
    }


def note_pace(state: ModelState, slower: Rows, steps: Rows) -> NDArray[np.bool_]:
    """Which ranks' pace is the usual one, shape `[rows]`: it is hardly slower.

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


def read_load(state: ModelState, cpu_load: Rows, shift: Rows) -> Rows:
    """How much slower ranks will be than in the last round, as their load says.

    A host of which others use the part c leaves a process 1 - c. Whether steps take 1 / (1 - c)
    times as long is learnt: a regression of changes of pace on jumps of -log(1 - c), shrunk.

    Args:
        state: What `no_periods` names.
        cpu_load: Processor use by others at the round's end.
        shift: Change of pace that the round has shown.
    """
    jump = state["load_jump"]
    seen = state["load_shift"] + shift
    state["load_sums"] = state["load_sums"] + np.column_stack([jump**2, jump * seen])
    reading = -np.log1p(-np.clip(cpu_load, 0.0, PRIORS.most_load))
    usual = np.where(np.isfinite(state["load"]), state["load"], reading)
    off = np.nan_to_num(reading - usual)
    jumps = np.abs(off) > PRIORS.slow
    squares, products = state["load_sums"].T
    belief = PRIORS.slow**2  # As much as the smallest rise that counts.
    factor = np.maximum((products + PRIORS.load_effect * belief) / (squares + belief), 0.0)
    # What the round has shown already was part of it; a fall is believed once it is seen.
    rise = np.maximum(factor * off - np.maximum(shift, 0.0), 0.0)
    rise = np.where(jumps & (off > 0), rise, 0.0)
    state["load"] = np.where(jumps, reading, usual + off / PRIORS.load_memory)
    state["load_jump"] = np.where(jumps, off, 0.0)
    state["load_shift"] = np.where(jumps, shift + rise, 0.0)
    return np.asarray(rise)
