"""How far data are prepared ahead, and what a step takes then, with pipelines of several speeds.

    scripts/bench.sh pipeline                      on 2 ranks
    mpirun -np 2 python -m benchmarks.pipeline     on these ranks

A batch of the pipeline takes as long as so many steps, and many may be under way at a time, as when
they come over a network. Plans change within epochs, so a batch is prepared once its plan is final:
a fixed number of steps ahead, or as many as the job finds out. Without plans within epochs (`dbs`)
nothing limits it. All take turns, epoch by epoch; the first epoch of each does not count. What is
told is the mean step over the mean step of `dbs` with a pipeline that takes no time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.time_budget import budget_of_ranks, minutes
from hvd_dbs.balancing.steps_ahead import StepsAhead

_SAMPLES_PER_RANK, _STEPS = 64, 45
_BATCH_STEPS = (0.0, 1.5, 4.0)
_WAYS = ("unlimited", "1 ahead", "3 ahead", "automatic")


@dataclass(frozen=True)
class Fixed(StepsAhead):
    """Stays as it is."""

    def after(self, *_: object) -> StepsAhead:
        return self


class Way:
    """A job of its own on a pipeline.

    Args:
        name: Of `_WAYS`.
        batch_seconds: What a batch of the pipeline takes.
    """

    def __init__(self, name: str, batch_seconds: float) -> None:
        size = _SAMPLES_PER_RANK * hvd.size()
        self._balancer = hvd.Balancer(size, "dbs" if name == "unlimited" else "adaptive")
        if name.endswith("ahead"):
            self._balancer.loop._rounds._needed = Fixed(int(name.split(maxsplit=1)[0]))
        random = np.random.default_rng(1)
        images = random.random((size * _STEPS, 32, 32, 3), dtype=np.float32)
        dataset = self._balancer.dataset((images, random.integers(0, 10, len(images))))
        self._dataset = dataset.map(_Wait(batch_seconds), num_parallel_calls=16).prefetch(16)
        layers = keras.layers
        self._model = keras.Sequential(
            [
                layers.Input((32, 32, 3)),
                layers.Conv2D(32, 3, activation="relu"),
                layers.Conv2D(32, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(10, activation="softmax"),
            ]
        )
        self._model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=self._balancer),
            "sparse_categorical_crossentropy",
        )
        self.step_seconds: list[float] = []

    def train(self) -> None:
        """An epoch."""
        ends: list[float] = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
        )
        balance = hvd.callbacks.DynamicBatchSizeCallback(self._balancer)
        self._model.fit(self._dataset, verbose=0, callbacks=[balance, note])
        # The pipeline is empty when an epoch begins.
        self.step_seconds.append((ends[-1] - ends[_STEPS // 3]) / (_STEPS - 1 - _STEPS // 3))

    @property
    def steps_ahead(self) -> int:
        return self._balancer.loop.steps_ahead


class _Wait:
    """A map that hands a batch on after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        waited = tf.numpy_function(self._wait, [labels], labels.dtype)
        return images, tf.ensure_shape(waited, labels.shape)

    def _wait(self, labels: np.ndarray) -> np.ndarray:
        time.sleep(self._seconds)
        return labels


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each way that count")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all pipelines"
    )
    options = parser.parse_args()
    hvd.init()
    plain = Way("unlimited", 0.0)
    for _ in range(3):
        plain.train()
    step = float(hvd.broadcast(tf.constant(plain.step_seconds[-1]), 0, name="step"))
    rows: list[dict[str, Any]] = []
    for number in budget_of_ranks(options.minutes).rounds(1, len(_BATCH_STEPS)):
        steps = _BATCH_STEPS[number]
        ways = {name: Way(name, steps * step) for name in _WAYS}
        bases: list[float] = []
        ratios: dict[str, list[float]] = {name: [] for name in _WAYS}
        for epoch in range(options.rounds + 1):
            for way in (plain, *ways.values()):
                way.train()
            bases.append(plain.step_seconds[-1])
            for name, way in ways.items() if epoch else ():
                ratios[name].append(way.step_seconds[-1] / bases[-1])
        ahead = ways["automatic"].steps_ahead
        rows.append({"batch_steps": steps, "ratios": ratios, "steps_ahead": ahead})
    if hvd.rank() == 0:
        print(f"\n**Steps on {hvd.size()} ranks, over those of {1000 * step:.0f} ms without a")
        print("pipeline (median; least to most)**\n")
        print("| a batch takes | " + " | ".join(_WAYS) + " | found |")
        print("|---" * (len(_WAYS) + 2) + "|")
        for row in rows:
            shown = " | ".join(
                f"{statistics.median(values):.2f}; {min(values):.2f} to {max(values):.2f}"
                for values in row["ratios"].values()
            )
            print(f"| {row['batch_steps']} steps | {shown} | {row['steps_ahead']} |")
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
