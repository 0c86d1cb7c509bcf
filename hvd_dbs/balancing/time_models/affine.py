"""A line through all that was seen, which outliers do not bend and a change replaces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.change import confirm
from hvd_dbs.balancing.time_models.line_fit import add_point, line, no_sums, rescale
from hvd_dbs.balancing.time_models.time_model import ModelState

_KEEP = 0.95
_FAR = 0.15
_REMEMBERED = 2.0


class Affine:
    """t_i(b) = a_i + c_i b, fitted online.

    Rounds fade by 5 % each. A time that is over 15 % off the line, at a batch size like those
    seen before, is held back for a round: were the next one to agree, the rank's pace has
    changed, so the line is scaled to it and what made it counts little from then on; otherwise
    it was an outlier and never counts.

    The fading, the threshold and the two rounds are ours.
    """

    record_size = 2

    def init(self, num_rows: int) -> ModelState:
        """Nothing known."""
        return {"sums": no_sums(num_rows), "suspect": np.zeros(num_rows)}

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Adds a round's point to the fit."""
        usable, sums = measurement.usable, state["sums"]
        b, t = measurement.batch_sizes, measurement.busy_seconds
        surprise = np.log(t / line(sums).seconds(b))
        weight = np.where(sums[:, 0] > 0, sums[:, 0], np.nan)
        mean = sums[:, 1] / weight
        spread = np.sqrt(np.maximum(sums[:, 3] / weight - mean**2, 0.0))
        familiar = np.abs(b - mean) <= 2 * spread + 0.15 * mean
        far = usable & familiar & (np.abs(surprise) > _FAR)
        changed, suspect = confirm(state["suspect"], surprise, far, usable)
        # Another pace: times scale, and little weight is left on them.
        scale = np.exp(np.where(changed, surprise, 0.0))
        sums = rescale(sums, scale, np.where(changed, _REMEMBERED, np.inf))
        added = (usable & (~far | changed)).astype(np.float64)
        return {"sums": add_point(sums, b, t, added, _KEEP), "suspect": suspect}

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Fixed and per-sample seconds, shape `[rows, 2]`."""
        fitted = line(state["sums"])
        return np.column_stack([fitted.fixed, fitted.per_sample])

    def curves(self, records: NDArray[np.float64]) -> AffineCurves:
        """The lines."""
        return AffineCurves(fixed=records[:, 0], per_sample=records[:, 1])
