"""One training on digits, whose number of ranks changes from phase to phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.training.models import datasets


@dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        ranks: Number of ranks, phase by phase.
        epochs: Epochs of each phase.
        local_batch_size: Samples of each rank in a step.
        learning_rate: Learning rate of one rank.
        momentum: Of SGD.
    """

    ranks: tuple[int, ...]
    epochs: int
    local_batch_size: int
    learning_rate: float
    momentum: float = 0.9


class Digits:
    """1,536 scans to train on and 261 to test with, in an order that is always the same."""

    def __init__(self) -> None:
        images, labels = datasets.load_scans()
        order = np.random.default_rng(0).permutation(len(labels))
        images, labels = images[order], labels[order]
        self.test = images[:261], labels[:261]
        self.train = images[261:], labels[261:]
        self.probe = images[261:773], labels[261:773]


class Probe(keras.callbacks.Callback):
    """The loss on the same 512 training samples after each step."""

    def __init__(self, digits: Digits) -> None:
        super().__init__()
        self.losses: list[float] = []
        self._images, self._labels = (tf.constant(part) for part in digits.probe)
        self._measure: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._measure is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self._measure = tf.function(lambda: loss(self._labels, self.model(self._images)))
            self.losses.append(float(self._measure()))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.losses.append(float(self._measure()))


def make_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train(setting: Setting, follows: dict[str, Any] | None, seed: int, digits: Digits) -> Any:
    """One training: `follows` None leaves the learning rate alone."""
    sizes = [setting.local_batch_size * ranks for ranks in setting.ranks]
    balancer = hvd.Balancer(sizes[0], "even")
    model = make_model(seed)
    # What an optimizer's own learning rate is meant for is the first number of ranks.
    sgd = keras.optimizers.SGD(setting.learning_rate * setting.ranks[0], setting.momentum)
    model.compile(
        optimizer=hvd.DistributedOptimizer(sgd, balancer=balancer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    probe = Probe(digits)
    callbacks = [hvd.callbacks.DynamicBatchSizeCallback(balancer), probe]
    if follows is not None:
        callbacks.append(hvd.callbacks.DynamicLearningRateCallback(balancer, **follows))
    changes = []
    for phase, size in enumerate(sizes):
        if phase and size != sizes[phase - 1]:
            changes.append(len(probe.losses))
            balancer.resize(size)
        begin = phase * setting.epochs
        model.fit(
            balancer.dataset(digits.train, shuffle_seed=seed),
            initial_epoch=begin,
            epochs=begin + setting.epochs,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
    loss, accuracy = model.evaluate(*digits.test, verbose=0)
    keras.backend.clear_session()
    return {
        "seed": seed,
        "test_loss": loss,
        "test_accuracy": accuracy,
        "changes": changes,
        "probe_losses": [round(value, 6) for value in probe.losses],
    }
