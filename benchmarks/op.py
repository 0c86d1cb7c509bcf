"""The weighted allreduce against Horovod's own on the same tensors, all in one run.

    scripts/bench.sh op                      both layouts on 2 and on 4 ranks
    mpirun -np 2 python -m benchmarks.op     one layout on these ranks

Ways to the same sum take turns, step by step, so that any other load of the machine hits them
alike; a step's time is that of its slowest rank. HOROVOD_FUSION_THRESHOLD=25165824 in the
environment lets Horovod fuse no more than a bucket holds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks.time_budget import TimeBudget, budget_of_ranks, minutes
from hvd_dbs.ops import buckets, native, reference
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce

_WARM_UP = 3
_LEAST_REPEATS = 3
Shape = tuple[int, ...]


def resnet50() -> Iterator[Shape]:
    """ResNet-50: 161 tensors, 25.6 million parameters."""
    yield from ((7, 7, 3, 64), (64,), (64,))
    incoming = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            convolutions = [(1, 1, incoming, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            if block == 0:
                convolutions.append((1, 1, incoming, 4 * width))
            for shape in convolutions:
                yield from (shape, shape[-1:], shape[-1:])  # With its batch normalization.
            incoming = 4 * width
    yield from ((2048, 1000), (1000,))


def bert_base() -> Iterator[Shape]:
    """BERT-base: 199 tensors, 109.5 million parameters."""
    width, inner = 768, 3072
    yield from ((30522, width), (512, width), (2, width), (width,), (width,))
    for _ in range(12):
        for _ in range(4):
            yield from ((width, width), (width,))
        yield from ((width,), (width,))
        yield from ((width, inner), (inner,), (inner, width), (width,))
        yield from ((width,), (width,))
    yield from ((width, width), (width,))


LAYOUTS: dict[str, Callable[[], Iterator[Shape]]] = {"resnet50": resnet50, "bert_base": bert_base}


def ways(bucket_bytes: Sequence[int]) -> dict[str, Callable[[list[tf.Tensor]], list[tf.Tensor]]]:
    """Ways from gradients to reduced gradients, by name; the first is what others compare with."""
    size = hvd.size()
    # Uneven, exact, and different on all ranks: 1, 2, ... samples.
    samples, total = hvd.rank() + 1, size * (size + 1) // 2
    factor = tf.constant(samples / total, tf.float64)

    def grouped(gradients: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        return hvd.grouped_allreduce(gradients, op=hvd.Sum, name=name)

    def scaled_loss(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        # The backward pass carries the factor along; all that is added is one multiplication.
        share = samples / total * tf.reduce_sum(gradients[-1][:1])
        with tf.control_dependencies([share]):
            return grouped(gradients, "scaled")

    found: dict[str, Callable[[list[tf.Tensor]], list[tf.Tensor]]] = {
        "Horovod grouped_allreduce, unweighted": lambda g: grouped(g, "plain"),
        "multiply in TensorFlow, grouped_allreduce": lambda g: grouped(
            [tensor * (samples / total) for tensor in g], "multiplied"
        ),
        "loss scaled by hand, grouped_allreduce": scaled_loss,
        "weighted_allreduce, TensorFlow reference": lambda g: reference.weighted_means(
            g,
            factor,
            compression=hvd.Compression.none,
            process_set=hvd.global_process_set,
            name="reference",
        ),
    }
    for limit in bucket_bytes:
        megabytes = limit / 2**20
        found[f"weighted_allreduce, {megabytes:g} MiB buckets"] = functools.partial(
            weighted_allreduce,
            weight=samples,
            total_weight=total,
            bucket_bytes=limit,
            name=f"known{limit}",
        )
    found[f"the same, {bucket_bytes[0] / 2**20:g} MiB, total not known before"] = lambda g: (
        weighted_allreduce(g, samples, bucket_bytes=bucket_bytes[0], name="unknown")
    )
    return found


def measure(
    shapes: Sequence[Shape], bucket_bytes: Sequence[int], num_repeats: int, budget: TimeBudget
) -> dict[str, Any]:
    """Seconds of every repeat of every way, the slowest rank's; as many as there is time for."""
    random = np.random.default_rng(hvd.rank())
    variables = [tf.Variable(random.standard_normal(shape, np.float32)) for shape in shapes]
    steps = {}
    for name, way in ways(bucket_bytes).items():

        def step(way: Callable[[list[tf.Tensor]], list[tf.Tensor]] = way) -> list[tf.Tensor]:
            # Backwards, as the gradients of a step appear.
            gradients = [variable.read_value() for variable in reversed(variables)][::-1]
            return way(gradients)

        steps[name] = tf.function(step)
    seconds = np.zeros((len(steps), _WARM_UP + num_repeats))
    for repeat in budget.rounds(_WARM_UP + _LEAST_REPEATS, _WARM_UP + num_repeats):
        for i, one_step in enumerate(steps.values()):
            hvd.allreduce(tf.constant(0.0), name="start")  # All ranks start together.
            start = time.perf_counter()
            one_step()
            tf.test.experimental.sync_devices()  # A GPU may not be done.
            seconds[i, repeat] = time.perf_counter() - start
    done = tf.constant(seconds[:, : repeat + 1])
    slowest = hvd.allreduce(done, op=hvd.Max, name="slowest").numpy()
    return dict(zip(steps, slowest[:, _WARM_UP:], strict=True))


def table(seconds: Mapping[str, Any]) -> list[str]:
    """A Markdown table: medians, quartiles, and ratios to the first."""
    lines = [
        "| way | median ms | quartiles | over the first |",
        "|---|---:|---:|---:|",
    ]
    first = np.median(next(iter(seconds.values())))
    for name, times in seconds.items():
        low, middle, high = np.percentile(times, [25, 50, 75])
        lines.append(
            f"| {name} | {middle * 1e3:.1f} | {low * 1e3:.1f} - {high * 1e3:.1f} "
            f"| {middle / first:.2f} |"
        )
    return lines


def main() -> None:
    """Measures on the ranks that it is started on."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layout", choices=LAYOUTS, default="resnet50")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all repeats"
    )
    parser.add_argument(
        "--bucket-mib",
        nargs="+",
        type=float,
        default=[buckets.DEFAULT_BUCKET_BYTES / 2**20],
        help="bucket sizes to try",
    )
    parser.add_argument("--json", type=Path, help="where to add the times, one line a layout")
    arguments = parser.parse_args()
    hvd.init()
    cores = len(os.sched_getaffinity(0))
    # Ranks of one host share its cores.
    tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // hvd.local_size()))
    if native.agreed() is None:
        raise SystemExit(f"There is no native library to measure. {native.reason_for_absence()}")
    limits = [int(megabytes * 2**20) for megabytes in arguments.bucket_mib]
    shapes = list(LAYOUTS[arguments.layout]())
    seconds = measure(shapes, limits, arguments.repeats, budget_of_ranks(arguments.minutes))
    if hvd.rank() != 0:
        return
    millions = sum(int(np.prod(shape)) for shape in shapes) / 1e6
    title = (
        f"{arguments.layout}: {len(shapes)} tensors, {millions:.1f} million float32, {hvd.size()} "
        f"ranks on {cores} cores, {len(next(iter(seconds.values())))} repeats"
    )
    print("\n".join(["", title, "", *table(seconds)]), flush=True)
    if arguments.json:
        record = {
            "layout": arguments.layout,
            "ranks": hvd.size(),
            "cores": cores,
            "seconds": {name: times.tolist() for name, times in seconds.items()},
        }
        with arguments.json.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
