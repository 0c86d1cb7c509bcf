"""What weighting, the event clock and the change signal cost on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import clocks, op
from benchmarks.time_budget import budget_of_ranks
from hvd_dbs.comm.collective import connect
from hvd_dbs.ops.buckets import DEFAULT_BUCKET_BYTES

_REPEATS, _STEPS = 30, 1000


def measure_allreduce(device: str, *, small: bool) -> dict[str, Any]:
    """The weighted allreduce over Horovod's own, of the gradients of ResNet-50.

    Args:
        device: Unused: where the gradients are.
        small: Whether to try it only.

    Returns:
        Median milliseconds of each way, and ratios to the first one.
    """
    shapes = [(1000,)] * 5 if small else list(op.resnet50())
    repeats = 3 if small else _REPEATS
    seconds = op.measure(shapes, [DEFAULT_BUCKET_BYTES], repeats, budget_of_ranks(None))
    medians = {way: 1e3 * float(np.median(times)) for way, times in seconds.items()}
    first = next(iter(medians.values()))
    return {
        way: {"ms": round(ms, 3), "over the first": round(ms / first, 3)}
        for way, ms in medians.items()
    }


def measure_clock(device: str, *, small: bool) -> dict[str, Any]:
    """Microseconds that clock and change signal add to a step, with 95 % intervals.

    Args:
        device: Unused: where the gradients are.
        small: Whether to try it only.
    """
    costs = clocks.measure_costs(connect(), 20 if small else _STEPS)
    return {name: [round(value, 2) for value in row] for name, row in costs.differences.items()} | {
        "the step without, us": round(costs.microseconds_without, 1)
    }
