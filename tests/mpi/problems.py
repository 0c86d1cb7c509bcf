"""Small training problems, and the one-process run that a distributed one must equal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from hvd_dbs.balancing import Strategy
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.comm import agreement
from hvd_dbs.keras.internals import build_for
from hvd_dbs.ops.step_clock import StepTimes
from hvd_dbs.sampling import EpochOrder, num_steps

SEED = 7


@dataclass(frozen=True)
class Scripted:
    """A solver that goes through given plans, one a decision."""

    plans: tuple[tuple[int, ...], ...]

    def init(self) -> SolverState:
        return {"next": 0}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        plan = self.plans[state["next"] % len(self.plans)]
        return Proposal(problem.apportion(plan)), {"next": state["next"] + 1}


def scripted(plans: Sequence[Sequence[int]]) -> Strategy:
    """A strategy that starts even and then uses these plans, one an epoch, whatever is measured."""
    solver = Scripted(tuple(tuple(plan) for plan in plans))
    return Strategy("scripted", model=LastRound(), solver=solver, every="epoch")


def make_timings_usable(balancer: hvd.Balancer) -> None:
    """Decisions of a balancer that does not train: its clock shows a step of the plan in force."""

    def drain() -> StepTimes:
        samples = balancer.loop.agreed_plan.batch_sizes[hvd.rank()]
        none = np.zeros(1)
        return StepTimes(np.ones(1), none, none + float(samples), none, np.ones(1), none, none)

    balancer.clock.drain = drain


def some_plans(global_batch_size: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Uneven plans for this job's number of ranks, the same on all ranks."""
    random = np.random.default_rng(seed)
    size = hvd.size()
    plans = []
    for _ in range(6):
        borders = np.sort(random.choice(global_batch_size - 1, size - 1, replace=False) + 1)
        plans.append(tuple(np.diff([0, *borders, global_batch_size]).tolist()))
    return plans


def images(num_samples: int = 70) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Random images and labels, the same on all ranks."""
    random = np.random.default_rng(0)
    x = random.normal(size=(num_samples, 8, 8, 1)).astype(np.float32)
    return x, random.integers(0, 4, num_samples)


def write_examples(path: Path, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
    """A TFRecord file of images and labels."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(x, y, strict=True):
            features = {
                "image": tf.train.Feature(float_list=tf.train.FloatList(value=image.ravel())),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def model(*, batch_norm: bool = False, seed: int = 1) -> keras.Model:
    """A small net; batch statistics only where asked for, since they differ by local batch."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        *([keras.layers.BatchNormalization()] if batch_norm else []),
        keras.layers.Flatten(),
        keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(1e-3)),
    ]
    return keras.Sequential(layers)


def compile_model(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, **options: Any
) -> None:
    """Compiles for classification."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )


def fit(
    model: keras.Model,
    balancer: hvd.Balancer,
    dataset: Any,
    epochs: int = 3,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **options: Any,
) -> keras.callbacks.History:
    """Trains with all three callbacks."""
    return model.fit(
        dataset,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
            *callbacks,
        ],
        **options,
    )


def sgd(balancer: hvd.Balancer | None) -> keras.optimizers.Optimizer:
    """Distributed SGD with momentum."""
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), balancer=balancer)


class OneProcess(keras.utils.PyDataset):
    """The global batches of an epoch, in the order of the balanced run."""

    def __init__(self, arrays: Sequence[NDArray[Any]], global_batch_size: int) -> None:
        super().__init__()
        self._arrays = arrays
        self._global_batch_size = global_batch_size
        self.epoch = 0

    def __len__(self) -> int:
        return num_steps(len(self._arrays[0]), self._global_batch_size)

    def __getitem__(self, step: int) -> tuple[NDArray[Any], ...]:
        num_samples = len(self._arrays[0])
        start = step * self._global_batch_size
        count = min(self._global_batch_size, num_samples - start)
        rows = EpochOrder(num_samples, SEED, self.epoch).indices(start, count)
        return tuple(array[rows] for array in self._arrays)


def one_process_run(
    model: keras.Model,
    arrays: Sequence[NDArray[Any]],
    global_batch_size: int,
    optimizer: keras.optimizers.Optimizer | None = None,
    epochs: int = 3,
) -> tuple[NDArray[np.float64], dict[str, list[float]]]:
    """Weights and history of `train_alone`, which rank 0 alone runs. Collective."""
    found = "null"
    if hvd.rank() == 0:
        history = train_alone(model, arrays, global_batch_size, optimizer, epochs)
        found = json.dumps([flat(model).tolist(), history])
    weights, history = json.loads(agreement.allgather_text(hvd_collective(), found)[0])
    return np.array(weights), history


def train_alone(
    model: keras.Model,
    arrays: Sequence[NDArray[Any]],
    global_batch_size: int,
    optimizer: keras.optimizers.Optimizer | None = None,
    epochs: int = 3,
) -> dict[str, list[float]]:
    """Trains in plain Keras on whole global batches, without Horovod; returns the history."""
    compile_model(model, optimizer or keras.optimizers.SGD(0.05, momentum=0.9))
    batches = OneProcess(arrays, global_batch_size)
    build_for(model, batches[0])  # Else Keras traces the step twice.
    history: dict[str, list[float]] = {}
    for batches.epoch in range(epochs):
        logs = model.fit(batches, epochs=1, shuffle=False, verbose=0).history
        for name, values in logs.items():
            history.setdefault(name, []).extend(values)
    return history


def published_run(
    model: keras.Model,
    arrays: Sequence[NDArray[Any]],
    batch_sizes: Sequence[int],
    multipliers: Sequence[float],
    rates: Sequence[float],
) -> NDArray[np.float64]:
    """Weights after Dynamic Mini-batch SGD as it was published, in NumPy, on whole global batches.

    Args:
        model: What to train; its weights are changed.
        arrays: Images and labels.
        batch_sizes: Global batch size by epoch.
        multipliers: Of the learning rate, by step since the start.
        rates: The learning rate that is multiplied, by epoch.
    """
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    velocities = [np.zeros(weight.shape) for weight in model.trainable_weights]
    left = list(multipliers)
    for epoch, (batch_size, rate) in enumerate(zip(batch_sizes, rates, strict=True)):
        batches = OneProcess(arrays, batch_size)
        batches.epoch = epoch
        for step in range(len(batches)):
            x, y = batches[step]
            with tf.GradientTape() as tape:
                value = loss(y, model(x)) + sum(model.losses)
            gradients = tape.gradient(value, [w.value for w in model.trainable_weights])
            multiplier = left.pop(0)
            for i, (weight, gradient) in enumerate(
                zip(model.trainable_weights, gradients, strict=True)
            ):
                # A rate that changes acts as it does in Keras, the multiplier as in the paper.
                velocities[i] = 0.9 * velocities[i] + rate * gradient.numpy()
                weight.assign(weight.numpy() - multiplier * velocities[i])
    return flat(model)


def flat(model: keras.Model) -> NDArray[np.float64]:
    """All weights in one vector."""
    return np.concatenate([w.numpy().astype(np.float64).ravel() for w in model.trainable_weights])


def weights_of_all_ranks(model: keras.Model) -> NDArray[np.float64]:
    """The weights of every rank, shape `[size, n]`."""
    return np.asarray(hvd_collective().allgather(flat(model)))


def hvd_collective() -> Any:
    """The job's collective, made once."""
    from hvd_dbs.comm.collective import connect

    if not hasattr(hvd_collective, "made"):
        hvd_collective.made = connect()  # type: ignore[attr-defined]
    return hvd_collective.made  # type: ignore[attr-defined]


def assert_equal_on_all_ranks(values: NDArray[Any]) -> None:
    rows = hvd_collective().allgather(values)
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
