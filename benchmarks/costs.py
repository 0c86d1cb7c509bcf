"""What the simulator assumes of jobs and machines, measured on this one.

    scripts/bench.sh costs                      on as many ranks as there are cores
    mpirun -np 2 python -m benchmarks.costs     on these ranks

Prints the defaults of `hvd_dbs/simulator/costs.py` and of `Noise`, as they stand there. All ranks
compute at once, so that balancing takes its time from training, as in jobs on processors.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.round import measure
from hvd_dbs.comm.collective import connect
from hvd_dbs.host.host_load import HostLoad

_WORK = bytes(100_000)
_STEP_SECONDS, _NUM_STEPS = 0.02, 400
"""Of the steps whose noise is measured."""

_OUTLIER = 1.5
"""A step that takes so many times the median is an outlier, not jitter."""

_LOAD_SECONDS = 10.0
"""The time for which load samples are counted."""

_NEW_SIZES, _STEPS_AT_A_SIZE = range(17, 41, 2), 8


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50, help="of each strategy, each way")
    options = parser.parse_args()
    hvd.init()
    collective = connect()
    rows = list(measure(collective, options.rounds))
    waits, beside = (
        np.median([row[way] for row in rows], axis=0).tolist() for way in ("waits", "beside")
    )
    everywhere = [_load_period(), _first_step(), *_noise(_fixed_work())]
    others = np.median(collective.allgather(np.array(everywhere)), axis=0).tolist()
    load_period, first_step, jitter, chance, factor = others
    if collective.rank == 0:
        date, cores = datetime.now(timezone.utc).date(), len(os.sched_getaffinity(0))
        print(f"{collective.size} ranks on {cores} cores, {date}\n\nCosts:")
        for name, milliseconds in {
            "decision_ms": waits[0],
            "decision_p90_ms": waits[1],
            "background_ms": beside[0],
            "background_p90_ms": beside[1],
            "switch_ms": first_step,
            "load_period_ms": load_period,
        }.items():
            print(f"    {name}: float = {_rounded(milliseconds)}")
        print("\nNoise:")
        print(f"    jitter: float = {_rounded(jitter)}")
        print(f"    outlier_chance: float = {_rounded(chance)}")
        print(f"    outlier_factor: float = {_rounded(factor)}")
    hvd.shutdown()


def _load_period() -> float:
    """Milliseconds from one sample of the host's load to the next while this rank computes."""
    seen: list[float] = []
    with HostLoad() as host_load:
        last, end = host_load.latest(), time.perf_counter() + _LOAD_SECONDS
        while (now := time.perf_counter()) < end:
            hashlib.sha256(_WORK)
            if host_load.latest() is not last:
                last = host_load.latest()
                seen.append(now)
    return 1000 * float(np.median(np.diff(seen)))


def _first_step() -> float:
    """Milliseconds that the first step at a batch size takes longer than the next ones."""
    step = _small_net()
    step(8)
    longer = []
    for batch_size in _NEW_SIZES:
        seconds = [_timed(partial(step, batch_size)) for _ in range(_STEPS_AT_A_SIZE)]
        longer.append(seconds[0] - float(np.median(seconds[1:])))
    return 1000 * max(float(np.median(longer)), 0.0)


def _small_net() -> Callable[[int], tf.Tensor]:
    kernel = tf.Variable(tf.ones([3, 3, 16, 16]))

    @tf.function(input_signature=[tf.TensorSpec([None, 32, 32, 16])])
    def gradient(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME")))
        return tape.gradient(loss, kernel)

    return lambda batch_size: gradient(tf.ones([batch_size, 32, 32, 16])).numpy()


def _fixed_work() -> NDArray[np.float64]:
    """Seconds of steps of the same work."""
    number = round(_STEP_SECONDS * 100 / _timed(partial(_hash, 100)))
    return np.array([_timed(partial(_hash, number)) for _ in range(_NUM_STEPS)])


def _hash(number: int) -> None:
    for _ in range(number):
        hashlib.sha256(_WORK)


def _noise(seconds: NDArray[np.float64]) -> tuple[float, float, float]:
    """Deviation of usual steps, the chance of an outlier, and by how much it takes longer."""
    ratio = seconds / np.median(seconds)
    low, high = np.percentile(ratio, [25, 75])
    outliers = ratio > _OUTLIER
    factor = float(ratio[outliers].mean()) if outliers.any() else 1.0
    return float(high - low) / 1.35, float(outliers.mean()), factor


def _rounded(value: float) -> float:
    """To two digits: no other is the same the next time."""
    return float(f"{value:.2g}")


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
