"""One compiled model for each strategy, trained an epoch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import horovod.tensorflow as plain_hvd
import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from benchmarks.training import clusters
from benchmarks.training.models import Task
from hvd_dbs.balancing import Strategy
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.time_models.last_round import LastRound

Data = tuple[tf.Tensor, tf.Tensor]


class StepTimer(keras.callbacks.Callback):
    """When each step ended; all ranks leave a step together."""

    def __init__(self) -> None:
        super().__init__()
        self._times: list[float] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._times = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._times:
            self._times.append(time.monotonic())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._times.append(time.monotonic())

    @property
    def step_seconds(self) -> NDArray[np.float64]:
        """Seconds of each step; the first one of an epoch has the start of the epoch in it."""
        return np.diff(self._times)


class StopEarly(keras.callbacks.Callback):
    """Ends a fit after so many steps."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self._num_steps = num_steps

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.stop_training = batch + 1 >= self._num_steps


class PlainSgd(keras.optimizers.SGD):
    """What a Horovod user writes on Keras 3 by hand: reduces with Horovod's own operations."""

    def apply(self, grads: list[Any], trainable_variables: list[Any] | None = None) -> None:
        reduced = list(grads)
        # Dense and sparse ones cannot be in a group together.
        dense = [i for i, gradient in enumerate(grads) if isinstance(gradient, tf.Tensor)]
        means = plain_hvd.grouped_allreduce(
            [grads[i] for i in dense], op=plain_hvd.Average, name="plain"
        )
        for i, mean in zip(dense, means, strict=True):
            reduced[i] = mean
        for i, gradient in enumerate(grads):
            if isinstance(gradient, tf.IndexedSlices):
                reduced[i] = plain_hvd.allreduce(
                    gradient, op=plain_hvd.Average, name=f"plain.sparse.{i}"
                )
        super().apply(reduced, trainable_variables)


class Trainer:
    """A model that trains with one strategy.

    Args:
        name: What the strategy is called in results.
        model: Compiled.
        dataset: One epoch.
        callbacks: Of each fit.
    """

    def __init__(
        self,
        name: str,
        model: keras.Model,
        dataset: tf.data.Dataset,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        self.name = name
        self._model = model
        self._dataset = dataset
        self._timer = StepTimer()
        self._callbacks = [self._timer, *callbacks]

    def run(
        self, num_epochs: int = 1, callbacks: Sequence[keras.callbacks.Callback] = ()
    ) -> NDArray[np.float64]:
        """Trains; returns the seconds of every step as this rank saw them."""
        self._model.fit(
            self._dataset,
            epochs=num_epochs,
            shuffle=False,
            verbose=0,
            callbacks=[*self._callbacks, *callbacks],
        )
        return self._timer.step_seconds

    def map(self, stage: Callable[..., tuple[tf.Tensor, ...]]) -> None:
        """Puts a stage at the end of its data pipeline."""
        self._dataset = self._dataset.map(stage)

    @property
    def model(self) -> keras.Model:
        """The model."""
        return self._model

    def trace(self) -> None:
        """Has TensorFlow build the graph."""
        self.run(callbacks=[StopEarly(2)])
        self.reset()

    def reset(self) -> None:
        """Goes back to where the strategy starts from."""

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """The plan in force; None without a balancer."""
        return None


class BalancedTrainer(Trainer):
    """Trains with a balancer, and listens to its clock."""

    def __init__(
        self,
        name: str,
        task: Task,
        balancer: hvd.Balancer,
        data: Data,
    ) -> None:
        model = task.compiled_model(
            lambda optimizer: hvd.DistributedOptimizer(optimizer, balancer=balancer)
        )
        super().__init__(
            name,
            model,
            balancer.dataset(data, shuffle_seed=7),
            [hvd.callbacks.DynamicBatchSizeCallback(balancer)],
        )
        self._balancer = balancer
        self._start = balancer.state_dict()
        self._heard: list[NDArray[np.float64]] = []
        self._drain = balancer.clock.drain
        balancer.clock.drain = self._listen  # type: ignore[method-assign]

    def reset(self) -> None:
        self._balancer.load_state_dict(self._start)

    def set_plan(self, batch_sizes: Sequence[int]) -> None:
        """Trains with these local batch sizes from now on, where the strategy is `given_plan()`."""
        set_plan(self._balancer, batch_sizes)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return self._balancer.plan.batch_sizes

    def forget(self) -> None:
        """Forgets what the clock has said so far."""
        if self._balancer.strategy.every is None:  # Else these times are the strategy's.
            self._balancer.clock.drain()
        self._heard = []

    def busy_seconds(self) -> tuple[tuple[int, ...], NDArray[np.float64]]:
        """The plan used most since `forget`, and each rank's busy seconds with it. Collective.

        Returns:
            Local batch sizes, and seconds of shape `[steps, size]` without first steps of epochs.
        """
        if self._balancer.strategy.every is None:
            self._balancer.clock.drain()
        collective = self._balancer.collective
        mine = np.concatenate([np.zeros((0, 2)), *self._heard])
        num_steps = int(collective.allgather(np.array([len(mine)])).min())
        mine = mine[len(mine) - num_steps :]
        busy, samples = (collective.allgather(column.copy()).T for column in mine.T)
        measured = np.all(np.isfinite(busy), axis=1)
        if not measured.any():
            return self.batch_sizes, np.zeros((0, collective.size))
        plans, counts = np.unique(samples[measured], axis=0, return_counts=True)
        most = plans[np.argmax(counts)]
        with_it = measured & np.all(samples == most, axis=1)
        return tuple(int(count) for count in most), busy[with_it]

    def _listen(self) -> Any:
        times = self._drain()
        self._heard.append(np.column_stack([times.busy_seconds, times.num_samples]))
        return times


@dataclass(frozen=True)
class _KeepGiven:
    """The plan in force, also one that was loaded: `static` begins from its own split."""

    def init(self) -> SolverState:
        return {}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        return Proposal(problem.current), state


def given_plan() -> Strategy:
    """Changes no plan but by `set_plan`."""
    return Strategy("given plan", model=LastRound(), solver=_KeepGiven(), every="epoch")


def set_plan(balancer: hvd.Balancer, batch_sizes: Sequence[int]) -> None:
    """Gives a balancer of `given_plan` another plan, from the next epoch on.

    Raises:
        RuntimeError: If another plan is in force then.
    """
    state = balancer.state_dict()
    state |= {"epoch": 0, "used": []}
    for rank, samples in zip(state["ranks"], batch_sizes, strict=True):
        rank["batch_size"] = int(samples)
    balancer.load_state_dict(state)
    if balancer.plan.batch_sizes != tuple(batch_sizes):
        raise RuntimeError(f"{balancer.plan} is in force; expected {tuple(batch_sizes)}.")


def make_trainers(
    names: Sequence[str],
    task: Task,
    data: Data,
    batch_size: int,
    plain_steps: int,
    journals: Path | None = None,
) -> dict[str, Trainer]:
    """A trainer of each strategy by its name.

    Args:
        names: Of `clusters.NAMES`.
        task: Gives the model.
        data: One epoch of samples, on all ranks the same.
        batch_size: Samples of all ranks in a step.
        plain_steps: Steps of an epoch of plain Horovod.
        journals: Folder for a journal of each strategy; None: there is none.
    """
    trainers: dict[str, Trainer] = {}
    others: dict[str, str | Strategy] = {
        clusters.STATIC: given_plan(),
        clusters.AGAIN: clusters.DBS,
    }
    for name in names:
        if name == clusters.PLAIN:
            trainers[name] = _plain(task, data, batch_size, plain_steps)
            continue
        strategy = others.get(name, name)
        journal = journals / f"{name}.jsonl" if journals else None
        balancer = hvd.Balancer(batch_size, strategy=strategy, journal=journal)
        trainers[name] = BalancedTrainer(name, task, balancer, data)
    return trainers


def _plain(task: Task, data: Data, batch_size: int, num_steps: int) -> Trainer:
    model = task.compiled_model(lambda optimizer: PlainSgd.from_config(optimizer.get_config()))
    num_samples = num_steps * batch_size
    dataset = (
        tf.data.Dataset.from_tensor_slices(tuple(tensor[:num_samples] for tensor in data))
        .shard(hvd.size(), hvd.rank())
        .shuffle(1024, seed=7)
        .batch(batch_size // hvd.size(), drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    return Trainer(clusters.PLAIN, model, dataset)
