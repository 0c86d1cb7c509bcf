"""What micro-batches and XLA cost and gain in a step, and what changing plans cost then.

    scripts/bench.sh micro                  three models, in one process
    scripts/bench.sh micro --minutes 10     as many repeats, and changes, as fit

Steps of one local batch: computed as a whole and in 2, 4 and 8 micro-batches, with and without XLA,
and by Keras alone. All take turns, step by step, in an order that changes. The table has medians,
quartiles in brackets, and the ratio to a step as a whole within a repeat.

Then the local batch size changes, 20 times, in whole micro-batches; each way trains three steps
with each size. What a change costs is what the first of them takes longer than the median of the
others: a retrace, a compilation, the choice of kernels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.time_budget import TimeBudget, minutes
from benchmarks.training.figures import Summary
from benchmarks.training.models import TASKS, Task
from hvd_dbs.keras.global_batch import train_on_global_batches

_WARM_UP, _LEAST_REPEATS = 3, 3
_STEPS_OF_SIZE = 3
_PARTS = 8
"""Micro-batches of the local batch that changing sizes are multiples of."""
_MANY_STEPS = 10**9


@dataclass(frozen=True)
class Way:
    """How steps are computed.

    Attributes:
        name: For the table.
        num_parts: Micro-batches of the local batch; 0: Keras alone, without hvd_dbs.
        jit_compile: Whether XLA compiles.
    """

    name: str
    num_parts: int
    jit_compile: bool = False


OF_ONE_SIZE = (
    Way("as a whole", 1),
    *(Way(f"{num} micro-batches", num) for num in (2, 4, 8)),
    Way("as a whole, XLA", 1, True),
    Way("4 micro-batches, XLA", 4, True),
    Way("Keras alone", 0),
    Way("Keras alone, XLA", 0, True),
)
OF_MANY_SIZES = (
    Way("as a whole", 1),
    Way("in micro-batches", _PARTS),
    Way("as a whole, XLA", 1, True),
    Way("in micro-batches, XLA", _PARTS, True),
    Way("Keras alone, XLA", 0, True),
)


class Trainer:
    """A model that is trained in one way.

    Args:
        task: The model and its samples.
        way: How.
        most_samples: Of a step.
    """

    def __init__(self, task: Task, way: Way, most_samples: int) -> None:
        balancer = None
        if way.num_parts:
            # A local batch as a whole has no micro-batch size: as in a job without them.
            size = task.samples_per_rank // way.num_parts if way.num_parts > 1 else None
            balancer = hvd.Balancer(
                most_samples, "even", micro_batch_size=size, allow_partial=bool(size)
            )
        keras.utils.set_random_seed(1)
        model = task.make_model()
        optimizer = keras.optimizers.SGD(1e-3, momentum=task.momentum)
        if balancer is not None:
            optimizer = hvd.DistributedOptimizer(optimizer, balancer=balancer)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=way.jit_compile)
        optimizer.build(model.trainable_variables)
        if balancer is not None:
            train_on_global_batches(model, balancer)
        self._balancer = balancer
        whole = way.jit_compile and balancer is None
        self._step = tf.function(
            lambda x, y: model.train_step((x, y)), reduce_retracing=True, jit_compile=whole or None
        )

    def seconds(self, x: tf.Tensor, y: tf.Tensor) -> float:
        """What a step on these samples takes."""
        num = len(x)
        if self._balancer is not None:
            self._balancer.loop.samples.begin_epoch(_MANY_STEPS, num, num, (num, num))
        start = time.perf_counter()
        logs = self._step(x, y)
        float(logs["loss"])  # Waits for it.
        return time.perf_counter() - start


Seconds = dict[str, list[float]]


def of_one_size(task: Task, repeats: int, budget: TimeBudget) -> Seconds:
    """Seconds of a step by way; the same repeat stands at the same place."""
    x, y = map(tf.constant, task.make_samples(task.samples_per_rank))
    trainers = {way.name: Trainer(task, way, task.samples_per_rank) for way in OF_ONE_SIZE}
    for trainer in trainers.values():
        for _ in range(_WARM_UP):
            trainer.seconds(x, y)
    found: Seconds = {name: [] for name in trainers}
    for repeat in budget.rounds(_LEAST_REPEATS, repeats):
        for i in np.random.default_rng(repeat).permutation(len(trainers)).tolist():
            name = list(trainers)[i]
            found[name].append(trainers[name].seconds(x, y))
    return found


def of_many_sizes(task: Task, changes: int, budget: TimeBudget) -> Seconds:
    """Seconds that each change of the local batch size costs, by way."""
    part = task.samples_per_rank // _PARTS
    sizes = part * np.random.default_rng(0).permutation(np.arange(2, 2 * _PARTS + 5))
    x, y = map(tf.constant, task.make_samples(int(sizes.max())))
    trainers = {way.name: Trainer(task, way, int(sizes.max())) for way in OF_MANY_SIZES}
    for trainer in trainers.values():  # Tracing for the first time is part of any training.
        for size in (part, part, part + 1, part):
            trainer.seconds(x[:size], y[:size])
    found: Seconds = {name: [] for name in trainers}
    for change in budget.rounds(1, changes):
        size = int(sizes[change % len(sizes)])
        for name, trainer in trainers.items():
            first, *others = (trainer.seconds(x[:size], y[:size]) for _ in range(_STEPS_OF_SIZE))
            found[name].append(first - float(np.median(others)))
    return found


def table_of_steps(model: str, seconds: Seconds) -> list[str]:
    """Markdown: what a step takes in each way."""
    lines = [
        f"| {model} | ms a step | times a step as a whole |",
        "|---|---:|---:|",
    ]
    whole = seconds["as a whole"]
    for name, values in seconds.items():
        step = Summary.of(1000 * value for value in values)
        ratio = Summary.of(value / base for value, base in zip(values, whole, strict=True))
        lines.append(
            f"| {name} | {step.median:.1f} ({step.low:.1f} - {step.high:.1f}) "
            f"| {ratio.median:.3f} ({ratio.low:.3f} - {ratio.high:.3f}) |"
        )
    return lines


def table_of_changes(model: str, seconds: Seconds) -> list[str]:
    """Markdown: what changes of the local batch size cost in each way."""
    lines = [
        f"| {model} | seconds lost by all changes | by a change | changes |",
        "|---|---:|---:|---:|",
    ]
    for name, values in seconds.items():
        one = Summary.of(values)
        lines.append(
            f"| {name} | {sum(values):.2f} | {one.median:.3f} ({one.low:.3f} - {one.high:.3f}) "
            f"| {len(values)} |"
        )
    return lines


def _parts_of(total: float | None, num: int) -> Callable[[], TimeBudget]:
    """Budgets one after the other, each with its part of the minutes."""
    return lambda: TimeBudget(None if total is None else total / num, begun=time.time())


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["residual", "transformer", "wide"])
    parser.add_argument("--repeats", type=int, default=40, help="steps of each way that count")
    parser.add_argument("--changes", type=int, default=20, help="of the local batch size")
    parser.add_argument("--minutes", type=minutes, help="stop after so many")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args(arguments)
    hvd.init()
    next_budget = _parts_of(options.minutes, 2 * len(options.models))
    measured: dict[str, dict[str, Seconds]] = {}
    for model in options.models:
        task = TASKS[model]
        steps = of_one_size(task, options.repeats, next_budget())
        print("\n".join(["", *table_of_steps(model, steps)]), flush=True)
        changes = of_many_sizes(task, options.changes, next_budget())
        print("\n".join(["", *table_of_changes(model, changes)]), flush=True)
        measured[model] = {"steps": steps, "changes": changes}
    if options.json:
        options.json.write_text(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
