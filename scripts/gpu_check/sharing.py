"""Balanced training of two ranks that share a device, one of which has more to do on it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.job.journal import read_journal

_LOADED_RANK = 1
_SIZE, _CHANNELS, _SCALE = 8, 16, 8
"""Of an image: few numbers, scaled up, since layers and not data are to take time."""


def train_on_shared_device(device: str, *, small: bool) -> dict[str, Any]:
    """Trains evenly, then balanced, while one rank's process has other work for the device.

    Args:
        device: "GPU" or "CPU".
        small: Whether to try it only.

    Returns:
        Of both, samples a second, what the last round has seen, and every plan on the way to it.
    """
    filters, batch, steps = (4, 32, 6) if small else (128, 256, 120)
    random = np.random.default_rng(0)
    inputs = random.standard_normal((batch * steps, _SIZE, _SIZE, _CHANNELS), np.float32)
    labels = random.integers(0, 10, batch * steps)
    figures: dict[str, Any] = {}
    has_load = hvd.rank() == _LOADED_RANK
    with _load(device, 32 * filters) if has_load else contextlib.nullcontext():
        for strategy in ("even", "adaptive"):
            seconds, figures[strategy] = _train(strategy, (inputs, labels), filters, batch)
            # The second half: all is traced by then, and `adaptive` has had its first plans.
            figures[strategy]["samples/s"] = round(batch / float(np.median(seconds)), 1)
    return figures


def _train(
    strategy: str, data: tuple[np.ndarray, np.ndarray], filters: int, batch: int
) -> tuple[list[float], dict[str, Any]]:
    keras.utils.set_random_seed(1)
    with tempfile.TemporaryDirectory(prefix="gpu_check") as folder:
        journal = Path(folder, "run.jsonl")
        balancer = hvd.Balancer(batch, strategy, journal=str(journal))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
        model = _model(filters)
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
        return seconds[len(seconds) // 2 :], _figures(journal) if hvd.rank() == 0 else {}


def _model(filters: int) -> keras.Model:
    """Much to compute for a sample, few gradients to send."""
    layers = [keras.Input([_SIZE, _SIZE, _CHANNELS]), keras.layers.UpSampling2D(_SCALE)]
    layers += [keras.layers.Conv2D(filters, 3, activation="relu") for _ in range(3)]
    return keras.Sequential(
        [*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    )


def _figures(journal: Path) -> dict[str, Any]:
    """What the last round has measured, in milliseconds, and all plans."""
    rounds = read_journal(journal)[0][-1].rounds
    entry = rounds[-1]
    seconds = {
        "busy": entry.busy_seconds,
        "first bucket ready": entry.first_bucket_seconds,
        "T_o": entry.overlap_seconds,
        "T_u": entry.last_bucket_seconds,
        "step": entry.step_seconds,
    }
    milliseconds = {
        f"{name}, ms": np.round(1e3 * np.array(row), 3).tolist() for name, row in seconds.items()
    }
    return {
        "local batch sizes": list(entry.batch_sizes),
        **milliseconds,
        "plans": [list(plan) for plan, _ in itertools.groupby(entry.plan for entry in rounds)],
    }


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
