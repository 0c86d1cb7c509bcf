"""Even split against DBS on unequal ranks, and what these ranks could do at best.

Run by `scripts/demo.sh`; every figure of its table is measured in that one run.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.ideal import ideal_step_seconds, measure_curve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import datasets
import keras_digits

_CURVE_BATCH_SIZES = (8, 24, 48, 72, 96, 128)
_NUM_SETTLING_EPOCHS = 2


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


def train(
    strategy: str, train_images: datasets.Images, test: datasets.Images, options: argparse.Namespace
) -> dict[str, Any]:
    """Trains with one strategy and says how it went once its plan had settled."""
    say(f"{strategy}: {options.epochs} epochs")
    balancer = hvd.Balancer(options.global_batch_size, strategy=strategy)
    dataset = balancer.dataset(train_images, shuffle_seed=7)
    model = compiled_model(
        train_images,
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), balancer=balancer),
    )
    log = EpochLog(balancer)
    model.fit(
        dataset,
        epochs=options.epochs,
        shuffle=False,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            log,
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
        ],
    )
    step_seconds = float(np.median(log.step_seconds[_NUM_SETTLING_EPOCHS:]))
    return {
        "split": strategy,
        "samples_per_second": options.global_batch_size / step_seconds,
        "step_seconds": step_seconds,
        "batch_sizes": log.batch_sizes[-1],
        "accuracy": model.evaluate(*test, verbose=0)[1] if hvd.rank() == 0 else None,
        "step_seconds_by_epoch": log.step_seconds,
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


def ideal(images: datasets.Images, options: argparse.Namespace) -> dict[str, Any]:
    """The shortest step that the ranks' own time curves allow."""
    say("ideal: measuring every rank's own time curve")
    balancer = hvd.Balancer(options.global_batch_size, strategy="even")
    curves = measure_curve(
        balancer.collective, local_step(images), _CURVE_BATCH_SIZES, options.curve_seconds
    )
    step_seconds = ideal_step_seconds(_CURVE_BATCH_SIZES, curves, options.global_batch_size)
    return {
        "split": "ideal",
        "samples_per_second": options.global_batch_size / step_seconds,
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
    """Measures, trains twice, prints the table and writes it as JSON."""
    parser = argparse.ArgumentParser(description="Even split against DBS on unequal ranks.")
    parser.add_argument("--epochs", type=int, default=8, help="at least 3; the first 2 settle")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--curve-seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.epochs <= _NUM_SETTLING_EPOCHS:
        parser.error(f"--epochs {options.epochs}: expected at least {_NUM_SETTLING_EPOCHS + 1}.")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hvd_dbs").setLevel(logging.INFO)
    hvd.init()
    images, test = datasets.load_digits()
    rows = [train(strategy, images, test, options) for strategy in ("even", "dbs")]
    rows.append(ideal(images, options))
    if hvd.rank() == 0 and options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    say("\n" + table(rows))


if __name__ == "__main__":
    main()
