"""The two trainings that `hvd-dbs verify` compares: balanced on all ranks, plain on one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from hvd_dbs.cli.verify.findings import Report, Seen
from hvd_dbs.cli.verify.problem import (
    IMAGE_SHAPE,
    NUM_CLASSES,
    Batch,
    Step,
    VerifyProblem,
    plain_average,
)
from hvd_dbs.tensorflow import allreduce


@dataclass(frozen=True)
class Training:
    """What a training has come to.

    Attributes:
        weights: All weights of the model, shape `[n]`.
        metrics: Loss and accuracy by epoch, shape `[epochs, 2]`.
    """

    weights: NDArray[np.float32]
    metrics: NDArray[np.float64]


def prepare() -> str:
    """Gives this rank a GPU of its own where there are some, and exact float32 everywhere.

    Returns:
        "GPU" or "CPU".
    """
    keras.config.set_floatx("float32")  # Users may have set others.
    keras.config.set_image_data_format("channels_last")
    # TF32 keeps 10 bits of a factor: another split of a batch would make a difference of 1e-3.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU"
    mine = gpus[hvd.local_rank() % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)
    return "GPU"


def train_balanced(problem: VerifyProblem) -> tuple[Training, list[tuple[Step, list[int]]]]:
    """Trains on all ranks, as users do. Collective.

    Returns:
        What it has come to, and for each step that this rank made the samples that counted.
    """
    balancer = hvd.Balancer(problem.global_batch_size, problem.strategy())
    dataset = balancer.dataset(problem.samples(), shuffle_seed=problem.seed)
    model = _WatchedModel(_layers())
    _set_weights(model, [problem.seed, balancer.rank])  # Rank 0's are broadcast.
    _compile(model, hvd.DistributedOptimizer(_optimizer(), balancer=balancer))
    watch = _Watch(balancer.loop)
    history = model.fit(
        dataset,
        epochs=problem.epochs,
        verbose=0,
        shuffle=False,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            watch,
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
        ],
    ).history
    metrics = np.column_stack([history["loss"], history["accuracy"]])
    return Training(_flat(model), metrics), watch.steps


def train_alone(problem: VerifyProblem, batches: Mapping[Step, Batch]) -> Training:
    """Trains in plain Keras on these global batches, without Horovod and without a balancer."""
    images, labels, _ = problem.samples()
    model = keras.Sequential(_layers())
    _set_weights(model, [problem.seed, 0])
    _compile(model, _optimizer())
    metrics = np.zeros((problem.epochs, 2))
    for (epoch, _), (numbers, weights) in batches.items():
        model.reset_metrics()
        logs = model.train_on_batch(images[numbers], labels[numbers], weights)
        metrics[epoch] += numbers.size / problem.num_samples * np.array(logs)
    return Training(_flat(model), metrics)


def compare(problem: VerifyProblem, training: Training, seen: Seen) -> Report:
    """Compares this rank's training with one process, and that with itself gone wrong."""
    alone = train_alone(problem, problem.global_batches())
    rows = {step: [numbers for _, numbers in ranks] for step, ranks in seen.items()}
    averages = {step: plain_average(numbers) for step, numbers in rows.items() if any(numbers)}
    wrong = train_alone(problem, averages)
    return Report(
        weights=_largest(training.weights - alone.weights),
        metrics=_largest(training.metrics - alone.metrics),
        control=_largest(wrong.weights - alone.weights),
        digest=hashlib.sha256(training.weights.tobytes()).hexdigest(),
    )


def meet() -> None:
    """Waits until all ranks are here; who ends then takes nothing from the others. Collective."""
    with tf.device("CPU"):
        allreduce(tf.zeros(1), name="hvd_dbs.verify")


class _WatchedModel(keras.Sequential):
    """Remembers which samples a step had, and makes its gradient NaN where none of them count."""

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        super().__init__(layers, name="watched")
        with tf.device("CPU"):
            self.is_idle = tf.Variable(False, trainable=False)
            self.numbers = tf.Variable(np.zeros(0, np.int64), shape=[None], trainable=False)

    def train_step(self, data: Any) -> Any:
        """Keras's own step, after a look at its samples."""
        images, labels, numbers = data
        self.numbers.assign(numbers)
        return super().train_step((tf.where(self.is_idle, np.nan, images), labels))


class _Watch(keras.callbacks.Callback):
    """Keeps the samples of each step that counted."""

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.steps: list[tuple[Step, list[int]]] = []
        self._loop = loop
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells the model whether this rank has padding samples only."""
        self.model.is_idle.assign(self._loop.samples_in_step(batch) == 0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the samples of the step."""
        numbers = [] if self.model.is_idle.numpy() else self.model.numbers.numpy().tolist()
        self.steps.append(((self._epoch, batch), numbers))


def _layers() -> list[keras.layers.Layer]:
    # No relu and no pooling: at a kink, what is mere rounding could make a large difference.
    return [
        keras.layers.Input(IMAGE_SHAPE),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(NUM_CLASSES, kernel_regularizer=keras.regularizers.L2(1e-3)),
    ]


def _set_weights(model: keras.Model, seed: Sequence[int]) -> None:
    # NumPy's numbers are the same on all devices.
    random = np.random.default_rng(seed)
    model.set_weights([random.normal(scale=0.1, size=w.shape) for w in model.get_weights()])


def _flat(model: keras.Model) -> NDArray[np.float32]:
    return np.concatenate([np.ravel(values) for values in model.get_weights()])


def _largest(differences: NDArray[Any]) -> float:
    return float(np.max(np.abs(differences)))


def _optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def _compile(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
