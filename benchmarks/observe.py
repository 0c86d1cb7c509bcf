"""What observing a job takes of its steps: rounds, journal, TensorBoard, Prometheus, alerts.

    scripts/bench.sh observe                    on 2 ranks
    mpirun -np 2 python -m benchmarks.observe   on these ranks

Trainings of one epoch take turns, in an order that changes: with `even` and nothing switched on,
with `observe`, and with `observe` and `adaptive` and everything switched on. Each step computes the
same for about 100 ms, whatever the plan is, so that what else runs on the rank's cores shows. The
table has the median over turns of the difference to `even` in the same turn, and the least and the
most, of the slowest rank. The goals are 0.2 % for `observe` and 0.5 % with everything. The replay
that `observe` starts after three minutes runs in one of the turns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.time_budget import budget_of_ranks
from hvd_dbs.comm.collective import Collective, connect

_VARIANTS = {
    "`even`": ("even", False),
    "`observe`": ("observe", False),
    "`observe`, all switched on": ("observe", True),
    "`adaptive`, all switched on": ("adaptive", True),
}
"""Strategy, and whether everything is switched on."""
_GOALS = ("", "0.2 %", "0.5 %", "0.5 %")
_STEP_SECONDS, _SAMPLES_PER_RANK, _FIRST_MEASURED = 0.1, 32, 3
_WORK = bytes(100_000)


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="of a turn of each kind")
    parser.add_argument("--turns", type=int, default=30, help="if there is time")
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args()
    hvd.init()
    collective = connect()
    budget = budget_of_ranks(options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        hashes = _hashes_of_a_step(collective)
        trainings = [
            _training(Path(folder, str(number)), *variant, options.steps, hashes)
            for number, variant in enumerate(_VARIANTS.values())
        ]
        for train in trainings:  # Tracing, and the first plan.
            train(0)
        rows = []
        for turn in budget.rounds(3, options.turns):
            order = np.roll(np.arange(len(trainings)), turn)
            seconds = {int(which): trainings[which](turn + 1) for which in order}
            rows.append([seconds[which] for which in range(len(trainings))])
    means = np.array(rows)
    differences = means - means[:, :1]
    ranks = collective.allgather(differences.ravel()).reshape(collective.size, *means.shape)
    slowest = ranks.max(axis=0)
    if collective.rank == 0:
        _print(means[:, 0], slowest, collective.size)
        if options.json:
            figures = {"ranks": collective.size, "even": means[:, 0].tolist()}
            figures["differences"] = slowest.tolist()
            options.json.write_text(json.dumps(figures) + "\n")
    hvd.shutdown()


def _print(even: np.ndarray, differences: np.ndarray, num_ranks: int) -> None:
    step = float(np.median(even))
    print(f"\n**What observing takes of a step, {num_ranks} ranks, {len(even)} turns**\n")
    print("| | us a step (median; least to most) | of a step | goal |\n|---|---:|---:|---:|")
    for which, name in list(enumerate(_VARIANTS))[1:]:
        low, middle, high = np.percentile(differences[:, which], [0, 50, 100])
        spread = f"{1e6 * middle:.0f}; {1e6 * low:.0f} to {1e6 * high:.0f}"
        print(f"| {name} | {spread} | {100 * middle / step:.3f} % | {_GOALS[which]} |")
    low, high = 1000 * even.min(), 1000 * even.max()
    print(f"\nA step of `even` takes {1000 * step:.2f} ms ({low:.2f} to {high:.2f}).")


def _training(
    folder: Path, strategy: str, is_all: bool, num_steps: int, num_hashes: int
) -> Callable[[int], float]:
    """A function that trains an epoch of this number, and tells what a step took."""
    folder.mkdir()
    size = _SAMPLES_PER_RANK * hvd.size()
    balancer = hvd.Balancer(size, strategy, journal=folder / "run.jsonl" if is_all else None)
    if is_all:
        tensorboard = hvd.observers.TensorBoard(folder / "logs")
        prometheus = hvd.observers.Prometheus(port=0, file=folder / "metrics.prom")
        balancer.observe(tensorboard, prometheus, lambda event: None)
    dataset = balancer.dataset(np.zeros((size * num_steps, 8), np.float32))
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch)))
        optimizer.apply(tape.gradient(loss, variables), variables)

    def train(number: int) -> float:
        ends = []
        for epoch in balancer.epochs(dataset, number + 1, number):
            for batch in epoch:
                step(batch)
                _compute(num_hashes)  # Before the step it would count as waiting for data.
                ends.append(time.perf_counter())
        return (ends[-1] - ends[_FIRST_MEASURED]) / (len(ends) - 1 - _FIRST_MEASURED)

    return train


def _compute(num_hashes: int) -> None:
    """Work that lets other threads of Python run, as TensorFlow's does."""
    for _ in range(num_hashes):
        hashlib.sha256(_WORK).digest()


def _hashes_of_a_step(collective: Collective) -> int:
    """How much the ranks compute in a step; the same on all."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        _compute(100)
        seconds.append((time.perf_counter() - start) / 100)
    found = max(1, round(_STEP_SECONDS / float(np.median(seconds))))
    return int(collective.broadcast(np.array([found]))[0])


if __name__ == "__main__":
    main()
