"""The model of Cannikin: computing and the start of communication, each a line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves, OverlapCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.line_fit import add_point, line, no_sums
from hvd_dbs.balancing.time_models.time_model import ModelState

_KEEP = 0.9


@dataclass(frozen=True)
class OverlapAffine:
    """f_i(b) = max(a_i(b) + P_i(b), a_i(b) + gamma P_i(b) + T_o).

    The forward part a_i and the backward part P_i are lines in b; the first bucket of gradients
    is ready after a_i + gamma P_i, the communication T_o of all buckets but the last can hide
    during the rest of the backward part. A step takes T_u + max_i f_i(b_i), and T_u, the last
    bucket, is the same for all, so it does not move the optimum. Only the sums a_i + P_i and
    a_i + gamma P_i are needed, and both are measured, so q, s, k, m and gamma need not be known
    apart. Where the first bucket or T_o was never measured, f_i is the computing time alone.

    The paper fits with two or more distinct batch sizes per rank; until then the line through
    the origin stands in, and rounds fade by 10 % each (both ours).

    References:
        Nie, Maghakian, Liu, "Cannikin", 2024, arXiv 2402.05302.
    """

    record_size = 5

    def init(self, num_rows: int) -> ModelState:
        """Nothing known."""
        return {
            "compute": no_sums(num_rows),
            "first_bucket": no_sums(num_rows),
            "overlap": np.full(num_rows, np.nan),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Adds a round's points to both lines."""
        usable, b = measurement.usable, measurement.batch_sizes
        first, overlap = measurement.first_bucket_seconds, measurement.overlap_seconds
        split = usable & (first > 0) & (first <= measurement.busy_seconds)
        seen = usable & (overlap >= 0) & np.isfinite(overlap)
        known = np.isfinite(state["overlap"])
        mean = np.where(known, _KEEP * state["overlap"] + (1 - _KEEP) * overlap, overlap)
        weights = usable.astype(np.float64)
        return {
            "compute": add_point(state["compute"], b, measurement.busy_seconds, weights, _KEEP),
            "first_bucket": add_point(
                state["first_bucket"], b, first, split.astype(np.float64), _KEEP
            ),
            "overlap": np.where(seen, mean, state["overlap"]),
        }

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Two lines and T_o, shape `[rows, 5]`."""
        compute, first = line(state["compute"]), line(state["first_bucket"])
        lines = [compute.fixed, compute.per_sample, first.fixed, first.per_sample]
        return np.column_stack([*lines, state["overlap"]])

    def curves(self, records: NDArray[np.float64]) -> OverlapCurves:
        """The slower of the two lines of each rank."""
        compute = AffineCurves(records[:, 0], records[:, 1])
        exposed = AffineCurves(records[:, 2] + records[:, 4], records[:, 3])
        split = exposed.known
        return OverlapCurves(
            compute,
            AffineCurves(
                np.where(split, exposed.fixed, compute.fixed),
                np.where(split, exposed.per_sample, compute.per_sample),
            ),
        )
