"""Whether what was measured can be acted on at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan

MOST_SPEED_RATIO = 1e5
"""A larger ratio between the speeds of two ranks is an error of measurement."""


def doubt(curves: TimeCurves, now: NDArray[np.float64], plan: Plan) -> str:
    """Why these curves cannot be acted on; empty if they can."""
    unknown = np.flatnonzero(~curves.known)
    if unknown.size:
        ranks = ", ".join(str(rank) for rank in unknown[:8]) + (", ..." if unknown.size > 8 else "")
        return f"no usable timing of rank {ranks}"
    batch_sizes = np.maximum(plan.samples, 1.0)
    speeds = batch_sizes / (now if plan.samples.min() else curves.seconds(batch_sizes))
    if speeds.max() > MOST_SPEED_RATIO * speeds.min():
        return (
            f"rank {int(np.argmin(speeds))} would be {speeds.max() / speeds.min():.0f} times "
            f"slower than rank {int(np.argmax(speeds))}, which is not believed"
        )
    return ""
