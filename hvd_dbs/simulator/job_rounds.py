"""The rounds of a job, as its journal has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JobRounds:
    """The rounds of a job, first to last. NaN: unknown.

    Attributes:
        name: What tables call the job.
        strategy: What it ran.
        global_batch_size: Samples of all ranks in a step.
        lengths: Steps of each round, shape `[rounds]`.
        steps_per_epoch: Steps of an epoch.
        batch_sizes: Local batch sizes that were measured, shape `[rounds, size]`.
        busy_seconds: A rank's own work in a step, likewise.
        quartile_seconds: What a quarter of the round's steps did not exceed, likewise.
        cpu_load: Use of a rank's processors by others, likewise.
        step_seconds: A whole step, shape `[rounds]`.
        first_bucket_seconds: A rank's work until its first bucket was ready, `[rounds, size]`.
        overlap_seconds: Communication of all buckets but the last, shape `[rounds]`.
        last_bucket_seconds: That of the last one, likewise.
        steps_ahead: By how many steps data were prepared, likewise; 0: unknown.
    """

    name: str
    strategy: str
    global_batch_size: int
    lengths: NDArray[np.int64]
    steps_per_epoch: int
    batch_sizes: NDArray[np.float64]
    busy_seconds: NDArray[np.float64]
    quartile_seconds: NDArray[np.float64]
    cpu_load: NDArray[np.float64]
    step_seconds: NDArray[np.float64]
    first_bucket_seconds: NDArray[np.float64]
    overlap_seconds: NDArray[np.float64]
    last_bucket_seconds: NDArray[np.float64]
    steps_ahead: NDArray[np.float64]

    @property
    def ends(self) -> NDArray[np.int64]:
        """Steps of the job that were over at the end of each round, shape `[rounds]`."""
        return np.cumsum(self.lengths)
