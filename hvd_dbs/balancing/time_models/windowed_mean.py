"""The model of LB-BSP on GPUs: the mean over a window of rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.time_model import ModelState


@dataclass(frozen=True)
class WindowedMean:
    """t_i(b_i) is the mean of the last rounds at this batch size; elsewhere a line through 0.

    A time taken at another batch size does not count, so a rank whose batch size changed starts
    an empty window. A round without a usable timing leaves the window as it is.

    Args:
        window: Rounds that count, at most.

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), SoCC 2020.
    """

    record_size = 1

    window: int = 8

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1 round.")

    def init(self, num_rows: int) -> ModelState:
        """Empty windows."""
        return {
            "batch_size": np.full(num_rows, np.nan),
            "seconds": np.full((num_rows, self.window), np.nan),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Pushes a round into the windows, newest first."""
        usable = measurement.usable
        moved = usable & (state["batch_size"] != measurement.batch_sizes)
        window = np.where(moved[:, np.newaxis], np.nan, state["seconds"])
        pushed = np.column_stack([measurement.busy_seconds, window[:, :-1]])
        return {
            "batch_size": np.where(usable, measurement.batch_sizes, state["batch_size"]),
            "seconds": np.where(usable[:, np.newaxis], pushed, window),
        }

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Seconds per sample, shape `[rows, 1]`."""
        counts = np.sum(np.isfinite(state["seconds"]), axis=1)
        mean = np.nansum(state["seconds"], axis=1) / np.where(counts > 0, counts, np.nan)
        per_sample: NDArray[np.float64] = mean / state["batch_size"]
        return per_sample[:, np.newaxis]

    def curves(self, records: NDArray[np.float64]) -> AffineCurves:
        """Lines through the origin."""
        return AffineCurves(fixed=np.zeros(len(records)), per_sample=records[:, 0])
