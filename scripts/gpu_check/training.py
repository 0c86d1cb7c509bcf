"""Trains a small network with one strategy after the other, as users do."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.job.journal import read_journal

_SIZE, _CHANNELS, _SCALE = 8, 16, 8
"""Of an image: few numbers, scaled up, since layers and not data are to take time."""


@dataclass(frozen=True)
class Training:
    """What each strategy trains.

    Attributes:
        batch: The global batch size.
        steps: Of an epoch.
        filters: Of each convolution.
        dense: Units of each of three dense layers, whose gradients fill several buckets; 0: none.
        epochs: The last one is measured. By then all is traced, and each strategy has had plans.
    """

    batch: int
    steps: int
    filters: int
    dense: int = 0
    epochs: int = 3


def train_in_turns(training: Training, strategies: Sequence[str], *, rounds: int) -> dict[str, Any]:
    """Trains with each strategy, and all of them again. Collective.

    Returns:
        For each strategy samples a second of each round, what the last decision was about, and
        every plan on the way to it; on rank 0.
    """
    random = np.random.default_rng(0)
    num_samples = training.batch * training.steps
    inputs = random.standard_normal((num_samples, _SIZE, _SIZE, _CHANNELS), np.float32)
    labels = random.integers(0, 10, num_samples)
    figures: dict[str, Any] = {}
    for strategy in itertools.chain.from_iterable(itertools.repeat(strategies, rounds)):
        seconds, found = _train(training, strategy, (inputs, labels))
        speeds = figures.get(strategy, {}).get("samples/s", [])
        speeds.append(round(training.batch / float(np.median(seconds)), 1))
        figures[strategy] = {"samples/s": speeds, **found}
    return figures


def _train(
    training: Training, strategy: str, data: tuple[np.ndarray, np.ndarray]
) -> tuple[list[float], dict[str, Any]]:
    keras.utils.set_random_seed(1)
    with tempfile.TemporaryDirectory(prefix="gpu_check") as folder:
        journal = Path(folder, "run.jsonl")
        balancer = hvd.Balancer(training.batch, strategy, journal=str(journal))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
        model = _model(training)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False)
        times = _Times()
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
            times,
        ]
        dataset = balancer.dataset(data, shuffle_seed=1)
        model.fit(dataset, epochs=training.epochs, shuffle=False, verbose=0, callbacks=callbacks)
        found = _figures(journal) if hvd.rank() == 0 else {}
    return np.diff(times.ends[-training.steps :]).tolist(), found


def _model(training: Training) -> keras.Model:
    """Much to compute for a sample and, without dense layers, few gradients to send."""
    layers = [keras.Input([_SIZE, _SIZE, _CHANNELS]), keras.layers.UpSampling2D(_SCALE)]
    layers += [keras.layers.Conv2D(training.filters, 3, activation="relu") for _ in range(3)]
    layers += [keras.layers.GlobalAveragePooling2D()]
    if training.dense:
        layers += [keras.layers.Dense(training.dense, activation="relu") for _ in range(3)]
    return keras.Sequential([*layers, keras.layers.Dense(10)])


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
