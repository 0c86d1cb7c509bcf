"""Balanced training of two ranks that share a device, one of which has more to do on it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd

_LOADED_RANK = 1
_INPUTS = 64
"""Numbers of a sample: few, since its layers and not its data are to take time."""


def train_on_shared_device(device: str, *, small: bool) -> dict[str, Any]:
    """Trains evenly, then balanced, while one rank's process has other work for the device.

    Args:
        device: "GPU" or "CPU".
        small: Whether to try it only.

    Returns:
        Of both, samples a second and the local batch sizes of the last plan.
    """
    width, batch, steps = (16, 32, 6) if small else (4096, 1024, 120)
    random = np.random.default_rng(0)
    inputs = random.standard_normal((batch * steps, _INPUTS), np.float32)
    labels = random.integers(0, 10, batch * steps)
    figures: dict[str, Any] = {}
    with _load(device, width) if hvd.rank() == _LOADED_RANK else contextlib.nullcontext():
        for strategy in ("even", "adaptive"):
            seconds, plan = _train(strategy, (inputs, labels), width, batch)
            # The second half: `adaptive` has its plan by then, and all is traced.
            figures[f"{strategy}, samples/s"] = round(batch / float(np.median(seconds)), 1)
            figures[f"{strategy}, local batch sizes"] = list(plan)
    return figures


def _train(
    strategy: str, data: tuple[np.ndarray, np.ndarray], width: int, batch: int
) -> tuple[list[float], tuple[int, ...]]:
    keras.utils.set_random_seed(1)
    balancer = hvd.Balancer(batch, strategy)
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input([_INPUTS]), *layers, keras.layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    times = _Times()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
        times,
    ]
    dataset = balancer.dataset(data, shuffle_seed=1)
    model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    seconds = np.diff(times.ends).tolist()
    return seconds[len(seconds) // 2 :], balancer.plan.batch_sizes


class _Times(keras.callbacks.Callback):
    """When each step ended; all ranks leave it together."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        tf.test.experimental.sync_devices()
        self.ends.append(time.perf_counter())


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
