"""NARX or the last value, whichever has foretold this rank better so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.narx import Narx
from hvd_dbs.balancing.time_models.time_model import ModelState

HORIZON = 3
"""Rounds from the last one measured to the one in which its plan holds first: one in which the
decision is made, and the steps that the data pipeline has prepared (`Scenario.steps_ahead`)."""

_MEMORY = 0.03
"""What the newest squared error counts for: about the last 33 rounds decide, a few visits of a
neighbour, so that one bad guess does not."""

_NARX = "narx_"


@dataclass(frozen=True)
class NarxOrLast:
    """Foretells speeds by `Narx` or by the last speed, for each rank by its own running errors.

    A prediction is made for the round in which its plan holds, `horizon` rounds later, and is
    compared with that round's speed when it is known. Both predictors run all the time; each has a
    weighted mean of its squared errors, as logarithms of ratios, and the smaller one is used. The
    last speed is used until there is something to compare.

    The published method is `Narx` alone. The choice is ours: NARX gains less some steps ahead than
    for the next one, and nothing where the load does not announce speeds (docs/papers.md).

    Args:
        horizon: Rounds from a measurement to the round that it is to foretell.
        narx: The network.

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), SoCC 2020, for CPU clusters.
    """

    record_size = 1

    horizon: int = HORIZON
    narx: Narx = field(default_factory=Narx)

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon={self.horizon} must be at least 1 round.")

    def init(self, num_rows: int) -> ModelState:
        """Nothing foretold yet."""
        return {
            **{_NARX + name: rows for name, rows in self.narx.init(num_rows).items()},
            "last": np.full(num_rows, np.nan),
            "foretold": np.full((num_rows, self.horizon, 2), np.nan),
            "errors": np.full((num_rows, 2), np.nan),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Scores what was foretold for this round, and foretells another one."""
        usable = measurement.usable
        speed = np.where(usable, measurement.batch_sizes / measurement.busy_seconds, np.nan)
        squared = np.log(state["foretold"][:, -1] / speed[:, np.newaxis]) ** 2
        errors = state["errors"]
        moved = np.where(np.isfinite(errors), errors + _MEMORY * (squared - errors), squared)
        narx = self.narx.update(self._narx_state(state), measurement)
        last = np.where(usable, speed, state["last"])
        newest = np.stack([self.narx.predict(narx), last], axis=1)[:, np.newaxis]
        return {
            **{_NARX + name: rows for name, rows in narx.items()},
            "last": last,
            "foretold": np.concatenate([newest, state["foretold"][:, :-1]], axis=1),
            "errors": np.where(np.isfinite(moved), moved, errors),
        }

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Predicted seconds per sample, shape `[rows, 1]`."""
        narx, last = state["foretold"][:, 0].T
        is_better = state["errors"][:, 0] < state["errors"][:, 1]
        speeds = np.where(is_better & np.isfinite(narx), narx, last)
        per_sample: NDArray[np.float64] = 1.0 / speeds
        return per_sample[:, np.newaxis]

    def curves(self, records: NDArray[np.float64]) -> AffineCurves:
        """Lines through the origin: on a CPU the time is in proportion to the samples."""
        return AffineCurves(fixed=np.zeros(len(records)), per_sample=records[:, 0])

    def _narx_state(self, state: ModelState) -> ModelState:
        return {
            name.removeprefix(_NARX): rows for name, rows in state.items() if name.startswith(_NARX)
        }
