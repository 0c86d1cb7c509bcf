"""The exchange of gradients beside the backward pass, with several buckets."""

from __future__ import annotations

from typing import Any

from scripts.gpu_check.training import Training, train_in_turns


def train_with_several_buckets(device: str, *, small: bool) -> dict[str, Any]:
    """Trains a network whose gradients fill several buckets: T_o is hidden, T_u is not.

    Args:
        device: "GPU" or "CPU".
        small: Whether to try it only.
    """
    training = Training(32, 3, 4, dense=64) if small else Training(256, 30, 128, dense=3072)
    return train_in_turns(training, ("even", "adaptive"), rounds=1 if small else 2)
