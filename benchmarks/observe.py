"""What observing a job takes of its steps: rounds, journal, TensorBoard, Prometheus, alerts.

    scripts/bench.sh observe                             on 2 ranks
    scripts/bench.sh observe --kinds observe --turns 40  `even` and `observe` alone
    mpirun -np 2 python -m benchmarks.observe            on these ranks

Trainings of one epoch take turns, in an order that changes: with `even` and nothing switched on,
with `observe`, with `adaptive`, and with each of these and everything switched on. Each step waits
for 100 ms, as the thread of a rank does whose GPU computes, whatever the plan is, and for up to two
of Horovod's cycles more, the same in all trainings of a turn, so that gradients fall into all
phases of a cycle. The table has three differences to `even` in the same turn, in microseconds a
step: by how much a step is longer; by how much its part between two steps is, which has all that
the training's own thread does for balancing, and not the sum of gradients; and by how much more
processor time the process takes, which a step is longer by at most where training itself keeps all
cores busy. Horovod's own thread is left out of it: over MPI it asks all the time whether tensors
have come, and takes from none to all of a core. Means over turns with 95 % intervals, of the rank
with the largest mean. The goals are 0.2 % of a step for `observe` and 0.5 % with everything. The
replay that `observe` starts after three minutes runs in one of the turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from benchmarks.intervals import mean_and_half
from benchmarks.time_budget import budget_of_ranks
from hvd_dbs.comm.collective import connect

_KINDS = {
    "observe": ("observe", False, "200"),
    "observe-all": ("observe", True, "500"),
    "adaptive": ("adaptive", False, ""),
    "adaptive-all": ("adaptive", True, "500"),
}
"""Strategy, whether everything is switched on, and the goal in microseconds of a step."""
_EVEN = ("even", False, "")
_STEP_SECONDS, _CYCLES_SECONDS, _SAMPLES_PER_RANK = 0.1, 0.002, 32
_FIRST = 0.2
"""Part of a turn that is left out: decisions follow upon each other where a training begins."""


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="of a turn of each kind")
    parser.add_argument("--turns", type=int, default=10, help="if there is time")
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args()
    before = _threads()
    hvd.init()
    horovod = _threads() - before
    collective = connect()
    budget = budget_of_ranks(options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        trainings = [
            _training(Path(folder, str(number)), strategy, is_all, options.steps, horovod)
            for number, (strategy, is_all, _) in enumerate(
                [_EVEN, *(_KINDS[kind] for kind in options.kinds)]
            )
        ]
        for train in trainings:  # Tracing, and the first plan.
            train(0)
        rows = []
        for turn in budget.rounds(3, options.turns):
            order = np.roll(np.arange(len(trainings)), turn)
            taken = {int(which): trainings[which](turn + 1) for which in order}
            rows.append([taken[which] for which in range(len(trainings))])
    means = np.array(rows)
    differences = means - means[:, :1]
    ranks = collective.allgather(differences.ravel()).reshape(collective.size, *means.shape)
    if collective.rank == 0:
        _print(options.kinds, means[:, 0], ranks)
        if options.json:
            figures = {"ranks": collective.size, "kinds": options.kinds}
            figures["even"] = means[:, 0].tolist()
            figures["differences"] = ranks.tolist()
            options.json.write_text(json.dumps(figures) + "\n")
    hvd.shutdown()


def _print(
    kinds: Sequence[str], even: NDArray[np.float64], differences: NDArray[np.float64]
) -> None:
    """Prints the table.

    Args:
        kinds: What was measured beside `even`.
        even: Of rank 0, seconds of a step, between steps, and of processors, shape `[turns, 3]`.
        differences: To `even`, shape `[ranks, turns, 1 + kinds, 3]`.
    """
    step, between, processor = np.mean(even, axis=0)
    print(f"\n**What observing takes of a step, {len(differences)} ranks, {len(even)} turns**\n")
    print("| | step, us (mean and 95 % interval) | between steps, us | processor time, us | goal |")
    print("|---|---:|---:|---:|---:|")
    for which, kind in enumerate(kinds, 1):
        strategy, is_all, goal = _KINDS[kind]
        means, halves = mean_and_half(1e6 * differences[:, :, which], axis=1)
        rank = np.argmax(means, axis=0)
        cells = [
            f"{means[rank[what], what]:.0f} ±{halves[rank[what], what]:.0f}" for what in range(3)
        ]
        name = f"`{strategy}`{', all switched on' if is_all else ''}"
        print(f"| {name} | {' | '.join(cells)} | {goal} |")
    print(
        f"\nA step of `even` takes {1000 * step:.2f} ms, {1000 * between:.2f} ms of it between two "
        f"steps, and {1000 * processor:.2f} ms of processor time."
    )


def _training(
    folder: Path, strategy: str, is_all: bool, num_steps: int, horovod: frozenset[str]
) -> Callable[[int], NDArray[np.float64]]:
    """A function that trains an epoch of this number.

    It returns what a step took, its part between steps, and how much processor time, shape `[3]`.
    """
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

    def train(number: int) -> NDArray[np.float64]:
        ends: list[tuple[float, float, float]] = []
        between = 0.0
        random = np.random.default_rng(number)  # The same in all trainings, on all ranks.
        seconds = _STEP_SECONDS + random.uniform(0, _CYCLES_SECONDS, num_steps)
        for epoch in balancer.epochs(dataset, number + 1, number):
            for batch in epoch:
                between += time.perf_counter() - ends[-1][0] if ends else 0.0
                step(batch)
                # Before the step it would count as waiting for data.
                time.sleep(seconds[len(ends)])
                ends.append((time.perf_counter(), between, _processor_seconds(horovod)))
        first = round(_FIRST * len(ends))
        return np.asarray(np.subtract(ends[-1], ends[first]) / (len(ends) - 1 - first))

    return train


def _threads() -> frozenset[str]:
    return frozenset(path.name for path in Path("/proc/self/task").iterdir())


def _processor_seconds(left_out: frozenset[str]) -> float:
    """Processor time of this process without that of some of its threads."""
    others = [Path(f"/proc/self/task/{thread}/schedstat").read_text() for thread in left_out]
    return time.process_time() - sum(int(text.split()[0]) for text in others) / 1e9


if __name__ == "__main__":
    main()
