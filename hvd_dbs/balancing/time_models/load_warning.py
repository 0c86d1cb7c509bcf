"""What the load of a host tells of the round to come, as far as it has been right so far."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.time_models.time_model import ModelState

_MOST_LOAD = 0.8
_JUMP_SIGMAS, _LEAST_JUMP, _FIRST_NOISE = 4.0, 0.1, 0.05
_USUAL_WEIGHT, _NOISE_WEIGHT = 0.2, 0.05
_PRIOR, _MOST_FACTOR, _MOST_LOG_PACE, _HEEDED = 0.1, 1.5, 1.5, 0.05


def no_warnings(num_rows: int) -> ModelState:
    """Before the first reading: neither the load nor what it does to steps is known."""
    return {
        "load": np.full(num_rows, np.nan),
        "load_noise": np.full(num_rows, _FIRST_NOISE**2),
        "load_sums": np.zeros((num_rows, 2)),
        "load_jump": np.zeros(num_rows),
        "warned": np.zeros(num_rows),
    }


def read_load(
    state: ModelState, cpu_load: NDArray[np.float64], surprise: NDArray[np.float64]
) -> ModelState:
    """What follows from the reading at a round's end.

    A host of which others use the part c leaves a process 1 - c, so that its steps may take
    1 / (1 - c) times as long. Whether they do is learnt by regression through the origin: of the
    logarithm of the next round's time over what was expected, on the jump of -log(1 - c). It is
    shrunk to zero, so a load that tells nothing changes nothing. A jump is one beyond four
    deviations of the readings. Only a rise is acted upon beforehand: that a rank is fast again is
    seen soon enough, and a rank that is not and gets more to do keeps all others waiting.

    Args:
        state: What `no_warnings` names; other entries do not matter.
        cpu_load: Processor use by others, 0 to 1, NaN where unknown, shape `[rows]`.
        surprise: Log of the round's time over the expected one, NaN for none, shape `[rows]`.

    Returns:
        The new entries. "warned": log of the factor that the coming round is expected to take
        longer by, 0 for no warning. "load_jump": the jump that waits for its round's time.
    """
    answered = (state["load_jump"] != 0) & np.isfinite(surprise)
    jump = np.where(answered, state["load_jump"], 0.0)
    pace = np.where(answered, state["warned"] + surprise, 0.0)
    pace = np.clip(pace, -_MOST_LOG_PACE, _MOST_LOG_PACE)
    sums = state["load_sums"] + np.column_stack([jump * jump, jump * pace])

    reading = -np.log1p(-np.clip(cpu_load, 0.0, _MOST_LOAD))
    usual = np.where(np.isfinite(state["load"]), state["load"], reading)
    off = np.nan_to_num(reading - usual)
    noise = state["load_noise"]
    jumps = np.abs(off) > np.maximum(_JUMP_SIGMAS * np.sqrt(noise), _LEAST_JUMP)
    steady = ~jumps & np.isfinite(reading)
    slower = np.clip(sums[:, 1] / (sums[:, 0] + _PRIOR), 0.0, _MOST_FACTOR) * off
    warned = np.where(slower > _HEEDED, slower, 0.0)
    return {
        "load": np.where(jumps, reading, usual + _USUAL_WEIGHT * off),
        "load_noise": np.where(steady, noise + _NOISE_WEIGHT * (off**2 - noise), noise),
        "load_sums": sums,
        "load_jump": np.where(jumps, off, np.where(answered, 0.0, state["load_jump"])),
        "warned": np.where(jumps, warned, np.where(answered, 0.0, state["warned"])),
    }
