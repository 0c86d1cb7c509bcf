"""What it costs that losses are those of the global batch, all in one run.

    scripts/bench.sh losses                      on 2 and on 4 ranks
    mpirun -np 2 python -m benchmarks.losses     on these ranks

A small transformer trains on padded tokens: with a plain mean over them, whose denominator every
rank knows, and with a masked mean, whose denominators are exchanged. Each is trained with the
model's own step and with the step that `fit` makes of it, in turns, step by step; a step's time is
that of its slowest rank.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import horovod.tensorflow as hvd_tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

import hvd_dbs.keras as hvd
from benchmarks.time_budget import TimeBudget, budget_of_ranks, minutes
from hvd_dbs.keras.global_batch import train_on_global_batches

_WARM_UP = 5
_LEAST_REPEATS = 5
_BATCH_SIZE, _LENGTH, _VOCABULARY, _WIDTH = 16, 64, 1000, 128

Step = Callable[[tf.Tensor, tf.Tensor], None]


def transformer(*, masked: bool) -> keras.Model:
    """One block of a language model."""
    tokens = layers.Input((_LENGTH,), dtype="int32")
    hidden = layers.Embedding(_VOCABULARY, _WIDTH, mask_zero=masked)(tokens)
    attended = layers.MultiHeadAttention(4, _WIDTH // 4)(hidden, hidden)
    hidden = layers.LayerNormalization()(hidden + attended)
    hidden = hidden + layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, "gelu")(hidden))
    return keras.Model(tokens, layers.Dense(_VOCABULARY)(hidden))


def steps_of(balancer: hvd.Balancer, *, masked: bool) -> tuple[Step, Step]:
    """A model's own step, and the one that `fit` makes of it."""
    model = transformer(masked=masked)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), balancer=balancer)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    own = model.train_step
    train_on_global_batches(model, balancer)

    def traced(train_step: Callable[..., object]) -> Step:
        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> None:
            train_step((x, y))

        return step

    return traced(own), traced(model.train_step)


def measure(num_repeats: int, budget: TimeBudget) -> dict[str, np.ndarray]:
    """Seconds of every repeat of every step, the slowest rank's; as many as there is time for."""
    size = hvd.size()
    balancer = hvd.Balancer(_BATCH_SIZE * size, "even")
    random = np.random.default_rng(hvd.rank())
    x = random.integers(1, _VOCABULARY, (_BATCH_SIZE, _LENGTH))
    lengths = random.integers(_LENGTH // 4, _LENGTH + 1, _BATCH_SIZE)
    x = tf.constant(np.where(np.arange(_LENGTH) < lengths[:, None], x, 0).astype(np.int32))
    plain, masked = (steps_of(balancer, masked=one) for one in (False, True))
    steps = {
        "plain mean, own step": plain[0],
        "plain mean, in `fit`": plain[1],
        "masked mean, own step": masked[0],
        "masked mean, in `fit`": masked[1],
    }
    num_steps = (_WARM_UP + num_repeats) * len(steps)
    balancer.dataset(np.zeros(num_steps * _BATCH_SIZE * size, np.int8))
    balancer.loop.begin_training()
    balancer.loop.begin_epoch(0)
    seconds = np.zeros((len(steps), _WARM_UP + num_repeats))
    done = 0
    for repeat in budget.rounds(_WARM_UP + _LEAST_REPEATS, _WARM_UP + num_repeats):
        # Another order each time: what follows another step is not always the same one.
        for i in np.random.default_rng(repeat).permutation(len(steps)).tolist():
            hvd_tensorflow.allreduce(tf.constant(0.0), name="start")  # All ranks start together.
            start = time.perf_counter()
            list(steps.values())[i](x, x)
            seconds[i, repeat] = time.perf_counter() - start
            done += 1
            balancer.loop.end_steps(done)
    balancer.loop.abandon_training()
    measured = tf.constant(seconds[:, : repeat + 1])
    slowest = hvd_tensorflow.allreduce(measured, op=hvd_tensorflow.Max, name="slowest")
    return dict(zip(steps, slowest.numpy()[:, _WARM_UP:], strict=True))


def table(seconds: dict[str, np.ndarray]) -> list[str]:
    """A Markdown table: medians, and what `fit` adds, in pairs of the same repeat."""
    lines = [
        "| step | median ms | over the model's own step, median (quartiles) | ms |",
        "|---|---:|---:|---:|",
    ]
    names = list(seconds)
    for own, in_fit in zip(names[::2], names[1::2], strict=True):
        added = (seconds[in_fit] / seconds[own] - 1) * 100
        low, middle, high = np.percentile(added, [25, 50, 75])
        milliseconds = np.median(seconds[in_fit] - seconds[own]) * 1e3
        lines.append(f"| {own} | {np.median(seconds[own]) * 1e3:.1f} | | |")
        lines.append(
            f"| {in_fit} | {np.median(seconds[in_fit]) * 1e3:.1f} "
            f"| {middle:+.1f} % ({low:+.1f} to {high:+.1f}) | {milliseconds:+.2f} |"
        )
    return lines


def main() -> None:
    """Measures on the ranks that it is started on."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all repeats"
    )
    arguments = parser.parse_args()
    hvd.init()
    seconds = measure(arguments.repeats, budget_of_ranks(arguments.minutes))
    if hvd.rank() == 0:
        cores = len(os.sched_getaffinity(0))
        num_repeats = len(next(iter(seconds.values())))
        title = f"{hvd.size()} ranks on {cores} cores, {num_repeats} repeats"
        print("\n".join(["", title, "", *table(seconds)]), flush=True)


if __name__ == "__main__":
    main()
