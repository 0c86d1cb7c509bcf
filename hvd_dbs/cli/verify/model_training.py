"""The trainings of a user's model that are compared: on all ranks, and in one process."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from hvd_dbs.cli.input_error import input_errors
from hvd_dbs.cli.verify.model_problem import ModelProblem
from hvd_dbs.cli.verify.random_layers import seed_states
from hvd_dbs.cli.verify.user_model import UserModel, build, optimizers_of, take
from hvd_dbs.keras.internals import all_layers, is_built
from hvd_dbs.keras.model_build import build_for_data
from hvd_dbs.keras.xla import turn_off_xla

Weights = list[NDArray[np.float64]]


@dataclass(frozen=True)
class ModelTraining:
    """What a training of a user's model has come to.

    Attributes:
        start: The weights before training; empty where the first step has made them.
        weights: The weights afterwards.
        metrics: Loss and metrics by name, one of each epoch.
        batch_means: Metrics that are means over batches, not over samples.
        drawn: Which of `seed_states` have drawn random numbers, by place.
        batch_sizes: This rank's samples in each step.
    """

    start: Weights
    weights: Weights
    metrics: dict[str, list[float]]
    batch_means: list[str] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Of all weights, bit for bit."""
        return hashlib.sha256(b"".join(one.tobytes() for one in self.weights)).hexdigest()


def train_alone(
    function: Callable[[], Any],
    problem: ModelProblem,
    samples: Any,
    permutations: Sequence[int],
    start: Weights,
) -> list[ModelTraining]:
    """Trains in plain Keras on whole global batches, without Horovod, once for each permutation.

    Args:
        function: The user's.
        problem: What is trained.
        samples: All samples.
        permutations: Orders within each batch, see `ModelProblem.global_batches`.
        start: Weights to begin with; none: the model's own.
    """
    trainings: list[ModelTraining] = []
    user = build(function, problem.seed)
    reset: Callable[[], None] | None = None
    for permutation in permutations:
        if trainings and reset is None:
            user = build(function, problem.seed)
        elif reset is not None:
            reset()
        set_weights(user.model, start or (trainings[0].start if trainings else []), permutation)
        if not trainings:
            reset = _reset(user.model)
        trainings.append(_train_once(user, problem, samples, permutation))
    return trainings


def train_balanced(
    function: Callable[[], Any], problem: ModelProblem, samples: Any, start: Weights
) -> ModelTraining:
    """Trains on all ranks, as users do. Collective.

    Raises:
        InputError: On all ranks, if they have other samples, or fewer than one each in a step.
    """
    with input_errors():
        balancer = hvd.Balancer(problem.global_batch_size, problem.strategy())
        dataset = balancer.dataset(samples, shuffle_seed=problem.seed)
    user = build(function, problem.seed)
    set_weights(user.model, start)
    watch = _Watch(balancer.loop)
    distribute(user.model, balancer)
    return _fit(
        user,
        dataset,
        watch,
        epochs=problem.epochs,
        callbacks=[*callbacks(balancer), watch],
    )


def distribute(model: keras.Model, balancer: hvd.Balancer) -> None:
    """Makes all optimizers of a model distributed, in place."""
    for optimizer in optimizers_of(model).values():
        hvd.DistributedOptimizer(optimizer, balancer=balancer)


def callbacks(balancer: hvd.Balancer) -> list[keras.callbacks.Callback]:
    """What a balanced `fit` is given."""
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
    ]


def set_weights(model: keras.Model, start: Weights, permutation: int = 0) -> None:
    """Sets weights of a model that has them already.

    Args:
        model: What is to be trained.
        start: Its weights; another number of them: they stay as they are.
        permutation: Not 0: another rounding of them where the model computes in half precision,
            which the order of samples hardly changes.
    """
    roundoff = unit_roundoff(model) if permutation else 0.0
    if len(start) != len(model.weights):
        return
    random = np.random.default_rng(permutation)
    for weight, value in zip(model.weights, start, strict=True):
        noise = roundoff * random.standard_normal(value.shape) if weight.trainable else 0.0
        weight.assign((value * (1.0 + noise)).astype(weight.dtype))


def unit_roundoff(model: keras.Model) -> float:
    """What the coarsest number type that a model computes in rounds to; 0: float32 or better."""
    types = {layer.dtype_policy.compute_dtype for layer in all_layers(model)}
    return 2.0**-8 if "bfloat16" in types else 2.0**-11 if "float16" in types else 0.0


@contextmanager
def quiet() -> Iterator[None]:
    """Within it no warnings are shown: what they suspect is looked at here."""
    logger = logging.getLogger("hvd_dbs")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _train_once(
    user: UserModel, problem: ModelProblem, samples: Any, permutation: int
) -> ModelTraining:
    batches = list(problem.global_batches(permutation).values())
    signature = tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    dataset = dataset.map(lambda numbers: take(samples, numbers))
    turn_off_xla(user.model)  # The ranks train without it too.
    return _fit(
        user,
        dataset.apply(tf.data.experimental.assert_cardinality(len(batches))),
        _Watch(),
        epochs=problem.epochs,
        steps_per_epoch=problem.num_steps,
    )


def _fit(user: UserModel, dataset: tf.data.Dataset, watch: _Watch, **options: Any) -> ModelTraining:
    model = user.model
    if user.map is not None:
        dataset = dataset.map(user.map)
    if user.class_weight is not None:
        options["class_weight"] = user.class_weight
    build_for_data(model, dataset)
    start, seeds = values_of(model), list(seed_states(model).values())
    options["callbacks"] = options.get("callbacks") or [watch]
    with quiet():
        history = model.fit(dataset, verbose=0, shuffle=False, **options).history
    weights = values_of(model)
    now = list(seed_states(model).values())
    return ModelTraining(
        start=start if len(start) == len(weights) else [],
        weights=weights,
        metrics={name: [float(one) for one in values] for name, values in history.items()},
        batch_means=watch.batch_means,
        drawn=[place for place, state in enumerate(now) if state not in seeds[place : place + 1]],
        batch_sizes=watch.batch_sizes,
    )


def _reset(model: keras.Model) -> Callable[[], None] | None:
    """What puts a model back to where it is now; None where that takes a new one."""
    if list(optimizers_of(model)) != ["optimizer"] or not is_built(model):
        return None
    model.optimizer.build(model.trainable_variables)
    state = [(one, one.numpy()) for one in [*model.variables, *model.optimizer.variables]]

    def reset() -> None:
        for variable, value in state:
            variable.assign(value)

    return reset


def values_of(model: keras.Model) -> Weights:
    """All weights of a model."""
    return [np.asarray(weight.numpy(), dtype=np.float64) for weight in model.weights]


class _Watch(keras.callbacks.Callback):
    """Keeps what only shows while a model trains."""

    def __init__(self, loop: Any = None) -> None:
        super().__init__()
        self.batch_sizes: list[int] = []
        self.batch_means: list[str] = []
        self._loop = loop
        self._num_steps = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts the steps of each epoch."""
        self._num_steps = 0

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notes this rank's samples."""
        if self._loop is not None:
            self.batch_sizes.append(self._loop.samples_in_step(batch))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts."""
        self._num_steps = batch + 1

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notes which metrics have counted steps."""
        means = [one for one in self.model.metrics if isinstance(one, keras.metrics.Mean)]
        self.batch_means = [one.name for one in means if float(one.count) == self._num_steps]
