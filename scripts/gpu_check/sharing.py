"""Two ranks that share a device, one of which has other work for it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import hvd_dbs.keras as hvd
from scripts.gpu_check.training import Training, train_in_turns

_LOADED_RANK = 1


def train_on_shared_device(device: str, *, small: bool) -> dict[str, Any]:
    """Trains evenly, then balanced, while one rank's process has other work for the device.

    Args:
        device: "GPU" or "CPU".
        small: Whether to try it only.
    """
    training = Training(32, 3, 4) if small else Training(256, 40, 128)
    has_load = hvd.rank() == _LOADED_RANK
    with _load(device, 32 * training.filters) if has_load else contextlib.nullcontext():
        return train_in_turns(training, ("even", "adaptive"), rounds=1 if small else 2)


@contextlib.contextmanager
def _load(device: str, width: int) -> Iterator[None]:
    """Keeps the device busy from another thread."""
    over = threading.Event()

    def multiply() -> None:
        with tf.device(f"{device}:0"):
            value = tf.ones([width, width])
            while not over.is_set():
                for _ in range(10):
                    value = tf.linalg.matmul(value, value) / float(width)
                value.numpy()  # Or the queue of a GPU grows without an end.

    thread = threading.Thread(target=multiply, name="load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
        if thread.is_alive():
            logging.getLogger(__name__).warning("the load has not ended within 60 s")
