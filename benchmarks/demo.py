"""Even split against DBS on unequal ranks, and what these ranks could do at best.

Run by `scripts/demo.sh`; every figure of its table is measured in that one run.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.ideal import ideal_step_seconds, measure_curve
from benchmarks.time_budget import TimeBudget, minutes, steps_that_fit
from hvd_dbs.comm.collective import Collective

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import datasets
import keras_digits

_CURVE_BATCH_SIZES = (8, 24, 48, 72, 96, 128)
_LEAST_STEPS = 4
"""Of an epoch, and those of the first two: one for TensorFlow's graphs, in which `scripts/demo.sh`
lets all ranks run freely, and one that tells how many steps fit."""
_NUM_SETTLING_EPOCHS = 3
_NUM_ROUNDS, _LEAST_ROUNDS = 8, 4
_PART_FOR_CURVES = 1 / 15
_PART_BEFORE_THE_END = 0.95
"""The rest is for the evaluation and for ending the processes."""


class EpochLog(keras.callbacks.Callback):
    """Plan and wall seconds a step of each epoch, without its first step.

    Stands before DynamicBatchSizeCallback, so that it sees the plan that the epoch had.
    """

    def __init__(self, balancer: hvd.Balancer) -> None:
        super().__init__()
        self.step_seconds: list[float] = []
        self.batch_sizes: list[tuple[int, ...]] = []
        self._balancer = balancer
        self._times: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts an epoch."""
        self._times = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes a step."""
        self._times.append(time.monotonic())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Sums the epoch up."""
        self.step_seconds.append((self._times[-1] - self._times[0]) / (len(self._times) - 1))
        self.batch_sizes.append(self._balancer.plan.batch_sizes)


def compiled_model(images: datasets.Images, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """The net of examples/keras_digits.py, with the same first weights on every call."""
    keras.utils.set_random_seed(1)
    model = keras_digits.make_model(images[0].shape[1:])
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class Training:
    """A model that trains with one strategy, an epoch at a time.

    Args:
        strategy: Its name.
        images: To train on.
        global_batch_size: Samples of all ranks in a step.
    """

    def __init__(self, strategy: str, images: datasets.Images, global_batch_size: int) -> None:
        self.strategy = strategy
        self.balancer = hvd.Balancer(global_batch_size, strategy=strategy)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        self.model = compiled_model(
            images, hvd.DistributedOptimizer(optimizer, balancer=self.balancer)
        )
        self.log = EpochLog(self.balancer)
        self._images = images
        self._callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            self.log,
            hvd.callbacks.DynamicBatchSizeCallback(self.balancer),
        ]

    def cut_epochs(self, num_steps: int) -> None:
        """Has the next epochs so many steps, of the first images."""
        num_samples = num_steps * self.balancer.global_batch_size
        part = tuple(array[:num_samples] for array in self._images)
        self._dataset = self.balancer.dataset(part, shuffle_seed=7)

    def run_epoch(self) -> None:
        """Trains the next epoch."""
        epoch = len(self.log.step_seconds)
        self.model.fit(
            self._dataset,
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,
            verbose=0,
            callbacks=self._callbacks,
        )

    def row(self, test: datasets.Images) -> dict[str, Any]:
        """What the table shows of it, from the epochs after its plan had settled."""
        step_seconds = float(np.median(self.log.step_seconds[_NUM_SETTLING_EPOCHS:]))
        return {
            "split": self.strategy,
            "samples_per_second": self.balancer.global_batch_size / step_seconds,
            "step_seconds": step_seconds,
            "batch_sizes": self.log.batch_sizes[-1],
            "accuracy": self.model.evaluate(*test, verbose=0)[1] if hvd.rank() == 0 else None,
            "step_seconds_by_epoch": self.log.step_seconds,
        }


def local_step(images: datasets.Images) -> Callable[[int], None]:
    """A training step of any batch size on this rank alone: same net, no communication."""
    model = compiled_model(images, keras.optimizers.SGD(0.0, momentum=0.9))
    model.make_train_function()
    iterators = {
        batch_size: iter(
            tf.data.Dataset.from_tensor_slices((images[0][:batch_size], images[1][:batch_size]))
            .batch(batch_size)
            .cache()
            .repeat()
        )
        for batch_size in _CURVE_BATCH_SIZES
    }
    signature = tf.data.Dataset.from_tensor_slices(images).batch(8).element_spec

    @tf.function(input_signature=signature)
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        model.train_step((x, y))

    def run(batch_size: int) -> None:
        step(*next(iterators[batch_size]))

    return run


def ideal(
    own_step: Callable[[int], None], collective: Collective, global_batch_size: int, seconds: float
) -> dict[str, Any]:
    """The shortest step that the ranks' own time curves allow; `seconds` is for the curves."""
    curves = measure_curve(
        collective, own_step, _CURVE_BATCH_SIZES, seconds / len(_CURVE_BATCH_SIZES)
    )
    step_seconds = ideal_step_seconds(_CURVE_BATCH_SIZES, curves, global_batch_size)
    return {
        "split": "ideal",
        "samples_per_second": global_batch_size / step_seconds,
        "step_seconds": step_seconds,
        "curve_batch_sizes": _CURVE_BATCH_SIZES,
        "curves": curves.tolist(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text; the first is the one that others are compared with."""
    even, best = rows[0]["step_seconds"], rows[-1]["step_seconds"]
    lines = [
        f"{'split':<8}{'samples/s':>11}{'step ms':>10}{'of even':>10}{'of ideal':>10}"
        f"{'accuracy':>10}  local batch sizes"
    ]
    for row in rows:
        accuracy = row.get("accuracy")
        lines.append(
            f"{row['split']:<8}{row['samples_per_second']:>11.0f}"
            f"{1000 * row['step_seconds']:>10.1f}{even / row['step_seconds']:>10.2f}"
            f"{best / row['step_seconds']:>10.2f}"
            f"{'' if accuracy is None else format(accuracy, '.4f'):>10}"
            f"  {', '.join(map(str, row.get('batch_sizes', ())))}"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints on rank 0."""
    if hvd.rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Trains both by turns, measures the ideal, prints the table and writes it as JSON."""
    parser = argparse.ArgumentParser(description="Even split against DBS on unequal ranks.")
    parser.add_argument("--minutes", type=minutes, default=3.0, help="how long all of it may take")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hvd_dbs").setLevel(logging.INFO)
    hvd.init()
    images, test = datasets.load_digits()
    trainings = [Training(name, images, options.global_batch_size) for name in ("even", "dbs")]
    collective = trainings[0].balancer.collective
    budget = TimeBudget(
        _PART_BEFORE_THE_END * options.minutes,
        agree=lambda seconds: float(collective.allgather(np.array([seconds]))[0, 0]),
    )
    own_step = local_step(images)
    own_step(_CURVE_BATCH_SIZES[0])
    for training in trainings:
        training.cut_epochs(_LEAST_STEPS)
        training.run_epoch()
    for training in trainings:
        training.run_epoch()
    say("ideal: measuring every rank's own time curve")
    seconds = 60 * options.minutes * _PART_FOR_CURVES
    best = ideal(own_step, collective, options.global_batch_size, seconds)
    del own_step  # Ranks that are slowed end slowly if Python's end has to free its iterators.
    gc.collect()
    num_steps = _steps_of_an_epoch(trainings, budget.seconds_left, len(images[0]))
    for training in trainings:
        training.cut_epochs(num_steps)
    for _ in budget.rounds(least=_LEAST_ROUNDS):
        for training in trainings:
            training.run_epoch()
        say("; ".join(map(_last_epoch, trainings)))
    rows = [*(training.row(test) for training in trainings), best]
    if hvd.rank() == 0 and options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    say(f"\n{table(rows)}\n")
    if best["step_seconds"] > min(row["step_seconds"] for row in rows):
        say("Something else used the cores meanwhile: a step was shorter than the ideal one.")
    say(f"It took {budget.seconds_used / 60:.1f} minutes.")


def _steps_of_an_epoch(trainings: Sequence[Training], seconds_left: float, num_images: int) -> int:
    """The steps that the remaining time has room for, by what the first ones took."""
    balancer = trainings[0].balancer
    first = [training.log.step_seconds[-1] for training in trainings]
    first = balancer.collective.allgather(np.array(first))[0].tolist()  # All ranks go by rank 0's.
    num_steps = steps_that_fit(
        seconds_left,
        sum(first),
        num_rounds=_NUM_ROUNDS,
        least=_LEAST_STEPS,
        most=num_images // balancer.global_batch_size,
    )
    say(
        f"The first steps took {1000 * first[0]:.0f} ms (even) and {1000 * first[1]:.0f} ms (dbs), "
        f"and {max(seconds_left, 0):.0f} s are left: epochs of {num_steps} steps, by turns."
    )
    missing = _LEAST_ROUNDS * num_steps * sum(first) - seconds_left
    if missing > 0:
        say(f"The minutes are too few for {_LEAST_ROUNDS} of them. It takes {missing:.0f} s more.")
    return num_steps


def _last_epoch(training: Training) -> str:
    log = training.log
    return f"{training.strategy} {1000 * log.step_seconds[-1]:.0f} ms {list(log.batch_sizes[-1])}"


if __name__ == "__main__":
    main()
