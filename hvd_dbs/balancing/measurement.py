"""What was seen of ranks in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_SECONDS = 1e6
"""A step that took longer (eleven days) is a broken clock, not a slow machine."""


@dataclass(frozen=True)
class Measurement:
    """One round of some ranks: a running job holds one row (its own), the simulator all.

    Attributes:
        batch_sizes: Samples a step in this round, shape `[ranks]`.
        busy_seconds: Busy seconds a step, shape `[ranks]`; NaN where nothing was measured.
        cpu_load: The host's processor use by others, 0 to 1, shape `[ranks]`; NaN: unknown.
        memory_load: The host's memory in use, 0 to 1, shape `[ranks]`; NaN: unknown.
    """

    batch_sizes: NDArray[np.float64]
    busy_seconds: NDArray[np.float64]
    cpu_load: NDArray[np.float64]
    memory_load: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        batch_sizes: Sequence[float] | NDArray[np.float64],
        busy_seconds: Sequence[float] | NDArray[np.float64],
        cpu_load: Sequence[float] | NDArray[np.float64] | None = None,
        memory_load: Sequence[float] | NDArray[np.float64] | None = None,
    ) -> Measurement:
        """A measurement from sequences; loads that are not given are unknown.

        Raises:
            ValueError: If the sequences differ in length.

        Example:
            >>> Measurement.of([32, 32], [0.1, -1.0]).usable.tolist()
            [True, False]
        """
        rows = [np.asarray(batch_sizes, dtype=np.float64)]
        for values in (busy_seconds, cpu_load, memory_load):
            given = np.full(rows[0].shape, np.nan) if values is None else values
            rows.append(np.asarray(given, dtype=np.float64))
        if any(row.shape != rows[0].shape or row.ndim != 1 for row in rows):
            raise ValueError(
                f"A measurement needs one entry per rank in each field; "
                f"given shapes {[row.shape for row in rows]}."
            )
        return cls(*rows)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Where the timing can be believed: finite, positive, no absurd length; `[ranks]`."""
        seconds = self.busy_seconds
        plausible = np.isfinite(seconds) & (seconds > 0) & (seconds < MOST_SECONDS)
        return plausible & (self.batch_sizes > 0)


def typical_seconds(step_seconds: NDArray[np.float64], warmup: int = 2) -> float:
    """One number for the steps of a round: their mean, without what is not the rank's pace.

    Left out are the first `warmup` steps (a new batch size makes kernels tune themselves) and
    steps over three times the median (a page fault storm, a pause). Where a round is too short
    for that, all its steps count.

    Args:
        step_seconds: Busy seconds by step, shape `[steps]`; NaN where a step does not count.
        warmup: Steps at the start to leave out.

    Returns:
        Seconds a step; NaN where no step counts.

    Example:
        >>> typical_seconds(np.array([9.0, 2.0, 1.0, 1.0, 1.1, 40.0, 0.9]))
        1.0
    """
    settled = step_seconds[warmup:] if step_seconds.size > warmup else step_seconds
    for candidate in (settled, step_seconds):
        finite = candidate[np.isfinite(candidate)]
        if finite.size:
            ordinary = finite[finite <= 3 * np.median(finite)]
            return float(np.mean(ordinary if ordinary.size else finite))
    return float("nan")
