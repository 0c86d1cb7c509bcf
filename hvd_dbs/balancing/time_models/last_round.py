"""The model of DBS: the last round's speed is the next one's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.time_model import ModelState


@dataclass(frozen=True)
class LastRound:
    """t_i(b) = b * t_i / b_i of the last round alone: a line through the origin.

    A round without a usable timing leaves nothing known, so that the plan is kept.

    References:
        Ye et al., "DBS: Dynamic Batch Size For Distributed Deep Neural Network Training",
        2020, arXiv 2007.11831: performance p_i = d_i / t_i.
    """

    record_size = 1

    def init(self, num_rows: int) -> ModelState:
        """Nothing known."""
        return {"per_sample": np.full(num_rows, np.nan)}

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Forgets what was, keeps seconds per sample of this round."""
        usable = measurement.usable
        per_sample = np.full(state["per_sample"].shape, np.nan)
        np.divide(measurement.busy_seconds, measurement.batch_sizes, out=per_sample, where=usable)
        return {"per_sample": per_sample}

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Seconds per sample, shape `[rows, 1]`."""
        return state["per_sample"][:, np.newaxis]

    def curves(self, records: NDArray[np.float64]) -> AffineCurves:
        """Lines through the origin."""
        return AffineCurves(fixed=np.zeros(len(records)), per_sample=records[:, 0])
