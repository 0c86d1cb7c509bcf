"""The model of OmniLearn: a moving average since the batch size last changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.time_model import ModelState


@dataclass(frozen=True)
class Ewma:
    """m <- m + weight (t - m) since the rank's last change of batch size; a line through 0.

    After a change the average starts again from the first timing. A round without a usable
    timing changes nothing.

    Args:
        weight: What the newest round counts for, above 0 and at most 1.

    References:
        Tyagi, Sharma, "Taming Resource Heterogeneity In Distributed ML Training With Dynamic
        Batching", ACSOS 2020; "OmniLearn", TPDS 2025. The weight is ours.
    """

    record_size = 1

    weight: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight={self.weight} must be above 0 and at most 1.")

    def init(self, num_rows: int) -> ModelState:
        """Nothing known."""
        return {"batch_size": np.full(num_rows, np.nan), "seconds": np.full(num_rows, np.nan)}

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Moves the averages towards this round's times."""
        usable = measurement.usable
        same = state["batch_size"] == measurement.batch_sizes
        seconds = measurement.busy_seconds
        moved = state["seconds"] + self.weight * (seconds - state["seconds"])
        return {
            "batch_size": np.where(usable, measurement.batch_sizes, state["batch_size"]),
            "seconds": np.where(usable, np.where(same, moved, seconds), state["seconds"]),
        }

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Seconds per sample, shape `[rows, 1]`."""
        return (state["seconds"] / state["batch_size"])[:, np.newaxis]

    def curves(self, records: NDArray[np.float64]) -> AffineCurves:
        """Lines through the origin."""
        return AffineCurves(fixed=np.zeros(len(records)), per_sample=records[:, 0])
