"""What some rounds say of each rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.job.step_parts import StepParts

FEW_ROUNDS = 5
"""Rounds that a figure is the median of, at most."""


@dataclass(frozen=True)
class RankFigures:
    """What some rounds say of the ranks; NaN: unknown.

    Attributes:
        batch_sizes: Local batch sizes in all of them, shape `[size]`.
        samples_per_second: Medians, shape `[size]`.
        waits: Parts of a step in which a rank waits for slower ones, medians, shape `[size]`.
        parts: Of a step, medians.
        cpu_load: Use of its processors by others, medians, shape `[size]`.
        step_seconds: Of a whole step, median.
    """

    batch_sizes: NDArray[np.int64]
    samples_per_second: NDArray[np.float64]
    waits: NDArray[np.float64]
    parts: StepParts
    cpu_load: NDArray[np.float64]
    step_seconds: float

    @classmethod
    def of(cls, rounds: tuple[RoundEntry, ...]) -> RankFigures:
        """Those of at least one round, all with the same batch sizes."""
        batch_sizes = np.array([entry.batch_sizes for entry in rounds])
        busy_seconds = np.array([entry.busy_seconds for entry in rounds])
        step_seconds = np.array([entry.step_seconds for entry in rounds])
        slowest = _of_known(np.nanmax, busy_seconds, axis=1)
        waits = (slowest[:, np.newaxis] - busy_seconds) / step_seconds[:, np.newaxis]
        return cls(
            batch_sizes=batch_sizes[0],
            samples_per_second=median_of_known(batch_sizes / busy_seconds),
            waits=median_of_known(waits),
            parts=median_parts(tuple(StepParts.of(one) for one in rounds)),
            cpu_load=median_of_known(np.array([entry.cpu_load for entry in rounds])),
            step_seconds=float(median_of_known(step_seconds)),
        )


def start_time(part: JournalPart) -> float:
    """When the first round began, seconds since 1970.

    A job's entry is written before its graphs are built. Where the journal says how many steps the
    round has, they give its length.
    """
    first = part.rounds[0]
    length = first.num_steps * first.step_seconds
    return max(part.job.time, first.time - length) if length > 0 else part.job.time


def alike(rounds: tuple[RoundEntry, ...]) -> tuple[RoundEntry, ...]:
    """The first ones, as long as they have measured the same batch sizes."""
    return tuple(takewhile(lambda one: one.batch_sizes == rounds[0].batch_sizes, rounds))


def median_parts(parts: Sequence[StepParts]) -> StepParts:
    """The median of each part; NaN where none is known."""
    return StepParts(*median_of_known(np.array([one.as_row for one in parts])).tolist())


def median_of_known(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the known numbers along the first axis; NaN where there are none."""
    return _of_known(np.nanmedian, rows, axis=0)


def _of_known(
    function: Callable[..., Any], rows: NDArray[np.float64], axis: int
) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Where nothing is known it says NaN.
        return np.asarray(function(rows, axis=axis))
