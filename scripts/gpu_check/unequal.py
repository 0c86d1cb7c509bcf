"""Two ranks whose devices differ: a part of a GPU each, or a GPU and a CPU."""

from __future__ import annotations

from typing import Any

from hvd_dbs.comm.agreement import allgather_text
from hvd_dbs.comm.collective import connect
from scripts.gpu_check.training import Training, train_in_turns

STRATEGIES = ("even", "dbs", "lb_bsp_gpu", "adaptive")


def train_on_unequal_devices(device: str, *, small: bool) -> dict[str, Any]:
    """Trains with each strategy in turns.

    Args:
        device: "GPU" or "CPU", of this rank.
        small: Whether to try it only.
    """
    devices = allgather_text(connect(), device)
    if small:
        training = Training(32, 3, 4)
    elif "CPU" in devices:
        training = Training(64, 15, 128)  # With an even split, a fifth of a second a step.
    else:
        training = Training(256, 40, 128)
    figures = train_in_turns(training, STRATEGIES, rounds=1 if small else 2)
    return {"devices": devices, **figures}
