"""What was seen of ranks in one round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST_SECONDS = 1e6
"""A step that took longer (eleven days) is a broken clock, not a slow machine."""
LEAST_SECONDS = 1e-9
"""Nor is one that took less a fast machine; ratios of times that count stay far from overflow."""


Rows: TypeAlias = Sequence[float] | NDArray[np.float64]
"""One number per rank."""


@dataclass(frozen=True)
class Measurement:
    """One round of some ranks: a running job holds one row (its own), the simulator all.

    Each field has shape `[ranks]`. Only `batch_sizes` must be known; NaN elsewhere means unknown,
    and a method that needs what is unknown does without it.

    Attributes:
        batch_sizes: Samples a step in this round.
        busy_seconds: Busy seconds a step.
        cpu_load: The host's processor use by others, 0 to 1.
        memory_load: The host's memory in use, 0 to 1.
        num_steps: Steps that `busy_seconds` is the mean of; 0: it is that of the first step at a
            batch size, in which kernels may have tuned themselves.
        quartile_seconds: The lower quartile of these, busy seconds.
        median_seconds: Their median, the lower one of two, busy seconds.
        first_bucket_seconds: From the start of a step until the first bucket of gradients was
            ready: forward pass and the first part of the backward pass.
        overlap_seconds: Communication that can go on during the backward pass: of all buckets
            but the last.
        last_bucket_seconds: Communication of the last bucket, which nothing can hide.
    """

    batch_sizes: NDArray[np.float64]
    busy_seconds: NDArray[np.float64]
    cpu_load: NDArray[np.float64]
    memory_load: NDArray[np.float64]
    num_steps: NDArray[np.float64]
    quartile_seconds: NDArray[np.float64]
    median_seconds: NDArray[np.float64]
    first_bucket_seconds: NDArray[np.float64]
    overlap_seconds: NDArray[np.float64]
    last_bucket_seconds: NDArray[np.float64]

    def __post_init__(self) -> None:
        shapes = {field.name: getattr(self, field.name).shape for field in fields(self)}
        if any(shape != self.batch_sizes.shape or len(shape) != 1 for shape in shapes.values()):
            raise ValueError(
                f"A measurement needs one entry per rank in each field; given shapes {shapes}."
            )

    @classmethod
    def of(cls, batch_sizes: Rows, busy_seconds: Rows, **others: Rows | None) -> Measurement:
        """A measurement from sequences; fields that are not given are unknown.

        Raises:
            ValueError: If the sequences differ in length.
            TypeError: If another keyword than a field's name is given.

        Example:
            >>> Measurement.of([32, 32], [0.1, -1.0], cpu_load=[0.0, 0.5]).usable.tolist()
            [True, False]
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(others) - set(names))
        if unknown:
            raise TypeError(
                f"A measurement has no field {', '.join(unknown)}; its fields: {', '.join(names)}."
            )
        given = {"batch_sizes": batch_sizes, "busy_seconds": busy_seconds, **others}
        shape = np.shape(batch_sizes)
        rows = {}
        for name in names:
            values = given.get(name)
            rows[name] = (
                np.full(shape, np.nan) if values is None else np.asarray(values, dtype=np.float64)
            )
        return cls(**rows)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Where the timing can be believed: finite, positive, of no absurd length; `[ranks]`."""
        seconds = self.busy_seconds
        plausible = np.isfinite(seconds) & (seconds > LEAST_SECONDS) & (seconds < MOST_SECONDS)
        return plausible & (self.batch_sizes > 0)


def typical_steps(step_seconds: NDArray[np.float64], warmup: int = 2) -> NDArray[np.float64]:
    """The steps of a round without what is not the rank's pace.

    Left out are the first `warmup` steps (a new batch size makes kernels tune themselves) and
    steps over three times the median (a page fault storm, a pause). One step is left at least.

    Args:
        step_seconds: Busy seconds by step, shape `[steps]`; NaN where a step does not count.
        warmup: Steps at the start to leave out.

    Returns:
        Their seconds, empty where no step counts.

    Example:
        >>> typical_steps(np.array([9.0, 2.0, 1.0, 1.0, 1.1, 40.0, 0.9])).tolist()
        [1.0, 1.0, 1.1, 0.9]
    """
    settled = step_seconds[max(min(warmup, step_seconds.size - 1), 0) :]
    for candidate in (settled, step_seconds):
        finite = candidate[np.isfinite(candidate)]
        if finite.size:
            # Of 3 to 40 steps, 8 to 40 times as fast as NumPy's.
            ordinary = finite[finite <= 3 * statistics.median(finite.tolist())]
            return np.asarray(ordinary if ordinary.size else finite)
    return step_seconds[:0]


def typical_seconds(step_seconds: NDArray[np.float64], warmup: int = 2) -> float:
    """One number for the steps of a round: the mean of `typical_steps`, NaN where there are none.

    Example:
        >>> typical_seconds(np.array([9.0, 2.0, 1.0, 1.0, 1.1, 40.0, 0.9]))
        1.0
    """
    steps = typical_steps(step_seconds, warmup)
    return float(np.mean(steps)) if steps.size else float("nan")
