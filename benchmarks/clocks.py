"""What clocks and change signal take of a step: noting when gradients are ready and back.

    scripts/bench.sh clocks                     on 1 and 2 ranks
    mpirun -np 2 python -m benchmarks.clocks    on these ranks

The same gradients are reduced without a clock, with one that notes the step, with one that notes
its buckets too and is read as a job reads it, and with the change signal besides. All take turns,
in an order that changes. A step begins at any time of Horovod's cycle, as where it computes: a sum
that is ready a little later may wait for the next cycle, so that only the mean shows what a delay
costs. The table has means of the differences to the step without a clock, without the tenth of them
at each end, of the slowest rank; with 95 % intervals, and as a part of a step of 100 ms. The goal
is 0.1 % at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.balancing.change_signal import STEPS_WATCHED
from hvd_dbs.comm.collective import Collective, connect
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce

_GRADIENTS, _ELEMENTS, _BUCKET_BYTES = 20, 1000, 16_000
"""Five buckets, as of a model of 100 MB; the clocks' cost does not depend on bytes."""
_WARM_UP, _TRIMMED = 20, 0.1
_CYCLE_SECONDS = 0.001
"""Between two looks of Horovod for sums that are ready; its default."""
_STEP_SECONDS = 0.1
_VARIANTS = (
    "no clock",
    "the step",
    "the step and its buckets",
    "the step, its buckets and the change signal",
)


@dataclass(frozen=True)
class Costs:
    """What clocks cost.

    Attributes:
        microseconds_without: Of a step without a clock, its median.
        differences: By what is noted, what it adds in microseconds: a mean, and the ends of its
            95 % interval.
    """

    microseconds_without: float
    differences: dict[str, tuple[float, float, float]]


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000, help="of each kind")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args()
    hvd.init()
    collective = connect()
    costs = measure_costs(collective, options.steps)
    if collective.rank == 0:
        print(f"\n**What the clocks take of a step, {collective.size} ranks**\n")
        print("| noted | us (mean; 95 % interval) | of 100 ms |\n|---|---:|---:|")
        for name, (mean, low, high) in costs.differences.items():
            part = 100 * mean / 1e6 / _STEP_SECONDS
            print(f"| {name} | {mean:.1f}; {low:.1f} to {high:.1f} | {part:.4f} % |")
        print(f"\nThe step without a clock takes {costs.microseconds_without:.0f} us.")
        if options.json:
            figures = {"ranks": collective.size, **asdict(costs)}
            options.json.write_text(json.dumps(figures) + "\n")
    hvd.shutdown()


def measure_costs(collective: Collective, num_steps: int) -> Costs:
    """Measures on the ranks of a job, so many steps of each kind. Collective."""
    seconds = _measure(num_steps)
    rows = [
        _figures(collective, seconds[:, which] - seconds[:, 0])
        for which in range(1, len(_VARIANTS))
    ]
    without = 1e6 * float(np.median(seconds[:, 0]))
    return Costs(without, dict(zip(_VARIANTS[1:], rows, strict=True)))


def _measure(num_steps: int) -> NDArray[np.float64]:
    """Seconds of steps of each kind, shape `[num_steps, len(_VARIANTS)]`."""
    steps = [_step(variant) for variant in range(len(_VARIANTS))]
    seconds = np.zeros((_WARM_UP + num_steps, len(steps)))
    before = np.random.default_rng(0).uniform(0, _CYCLE_SECONDS, seconds.shape)  # On all ranks.
    for number in range(len(seconds)):
        for turn in range(len(steps)):
            which = (number + turn) % len(steps)
            _compute(before[number, which])
            start = time.perf_counter()
            steps[which](number)
            tf.test.experimental.sync_devices()  # A GPU may not be done.
            seconds[number, which] = time.perf_counter() - start
    return seconds[_WARM_UP:]


def _compute(seconds: float) -> None:
    """Keeps the processor busy: who sleeps wakes up slowly."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _step(variant: int) -> Callable[[int], None]:
    clock = StepClock()
    gradients = [tf.ones([_ELEMENTS])] * _GRADIENTS
    with tf.device("CPU"):
        data = tf.ones([])  # Of a step, as tf.data hands them over.
    noting = clock.noting_buckets if variant >= 2 else contextlib.nullcontext

    @tf.function
    def reduce(data: tf.Tensor, *gradients: tf.Tensor) -> list[tf.Tensor]:
        if variant:
            clock.fed([data])
            ready = clock.ready(gradients)
        signals = [clock.signal()] if variant >= 3 else []
        with noting():
            means = weighted_allreduce(
                [*gradients, *signals],
                1.0,
                total_weight=hvd.size(),
                bucket_bytes=_BUCKET_BYTES,
                name=f"benchmark.clocks.{variant}",
            )
        if variant:
            clock.back(ready, means, tf.constant(1))
        for mean in means[len(gradients) :]:
            clock.receive_signal(mean)
        return means  # TensorFlow leaves out sums that nobody asks for.

    def step(number: int) -> None:
        if variant:
            clock.begin_step(number)
            clock.ask()
        reduce(data, *gradients)
        if variant:
            clock.peek(STEPS_WATCHED)
        if variant >= 3:
            clock.take_signal()

    return step


def _figures(
    collective: Collective, differences: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Microseconds of the slowest rank: a trimmed mean and its interval."""
    cut = int(_TRIMMED * len(differences))
    ordered = np.sort(differences)
    kept = ordered[cut : len(ordered) - cut]
    # Of a trimmed mean, by the spread with what is cut off moved to where the cut is.
    sd = np.std(np.clip(differences, kept[0], kept[-1])) / (1 - 2 * _TRIMMED)
    mean, half = np.mean(kept), 1.96 * sd / np.sqrt(len(differences))
    rows = collective.allgather(1e6 * np.array([mean, mean - half, mean + half]))
    mean, low, high = rows[np.argmax(rows[:, 0])].tolist()
    return mean, low, high


if __name__ == "__main__":
    main()
