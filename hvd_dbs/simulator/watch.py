"""What ranks tell each other between two rounds, for all ranks at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.change_signal import STEPS_WATCHED, ExpectedSteps
from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, lower_value
from hvd_dbs.simulator.cluster import Played
from hvd_dbs.simulator.scenario import Scenario

_MOST_STEPS = 60
"""Of a longer round, the last ones tell how much steps differ."""


class Watch:
    """Looks for ranks whose last steps signal a change, as `RankPace` does in a running job.

    Args:
        scenario: What is simulated.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._expected = ExpectedSteps.unknown(scenario.size)
        self._changes: tuple[NDArray[np.int64], NDArray[np.bool_]] | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the last look found some."""
        return self._changes is not None

    def look(self, pieces: Sequence[Played]) -> None:
        """Looks at the last steps of the round under way."""
        steps, busy, samples, _ = self._last_steps(pieces, STEPS_WATCHED)
        job_size = int(np.count_nonzero(pieces[-1].batch_sizes))
        changed = self._expected.changes(busy, samples, job_size)
        self._changes = (steps, changed) if changed.any() else None

    def end_round(
        self, pieces: Sequence[Played], measurement: Measurement, present: NDArray[np.int64]
    ) -> Measurement:
        """What the ranks measured in a round; of ranks that have changed, the changed steps alone.

        Args:
            pieces: The round's steps.
            measurement: What they would have measured without a change.
            present: The ranks that `measurement` is of.
        """
        steps, busy, samples, is_first = self._last_steps(pieces, _MOST_STEPS)
        batch_sizes = pieces[-1].batch_sizes.astype(np.float64)
        counted = np.where((samples == batch_sizes) & ~is_first, busy, np.nan)
        if self._changes is not None:
            seen_at, changed = self._changes
            ranks = np.flatnonzero(changed.any(axis=0))
            # The round goes on for a step while the signal travels.
            reported = np.repeat((steps > seen_at[0])[:, np.newaxis], len(ranks), axis=1)
            reported[np.isin(steps, seen_at)] = changed[np.isin(seen_at, steps)][:, ranks]
            counted[:, ranks] = np.where(reported, counted[:, ranks], np.nan)
            measurement = _replaced(measurement, np.searchsorted(present, ranks), counted[:, ranks])
        seconds = np.full(self._scenario.size, np.nan)
        is_settled = measurement.num_steps > 0
        seconds[present] = np.where(is_settled, measurement.busy_seconds, np.nan)
        if len(busy):
            job_size = int(np.count_nonzero(batch_sizes))
            self._expected = self._expected.after(batch_sizes, seconds, counted, job_size)
        self._changes = None
        return measurement

    def _last_steps(
        self, pieces: Sequence[Played], most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Numbers, busy seconds and samples of the last measured steps, the last one first.

        And which of them were the first at a new batch size.
        """
        measured = (
            (
                piece.start + index,
                piece.busy[index],
                piece.batch_sizes,
                piece.is_first & (index == 0),
            )
            for piece in reversed(pieces)
            for index in reversed(range(len(piece.busy)))
            if self._scenario.is_measured(piece.start + index)
        )
        last = list(itertools.islice(measured, most))
        shape = (len(last), self._scenario.size)
        return (
            np.array([step for step, *_ in last], dtype=np.int64),
            np.array([busy for _, busy, _, _ in last], dtype=np.float64).reshape(shape),
            np.array([samples for _, _, samples, _ in last], dtype=np.float64).reshape(shape),
            np.array([is_first for *_, is_first in last], dtype=np.bool_).reshape(shape),
        )


def _replaced(
    measurement: Measurement, rows: NDArray[np.intp], step_seconds: NDArray[np.float64]
) -> Measurement:
    """The measurement in which some rows are of these steps."""
    busy, steps = measurement.busy_seconds.copy(), measurement.num_steps.copy()
    lower = measurement.quartile_seconds.copy(), measurement.median_seconds.copy()
    counts = np.isfinite(step_seconds).sum(axis=0)
    reported = counts > 0
    busy[rows[reported]] = np.nansum(step_seconds, axis=0)[reported] / counts[reported]
    steps[rows[reported]] = counts[reported]
    for seconds, parts in zip(lower, (QUARTILE, MEDIAN), strict=True):
        seconds[rows[reported]] = lower_value(step_seconds[:, reported], parts)
    lower_seconds = dict(zip(("quartile_seconds", "median_seconds"), lower, strict=True))
    return replace(measurement, busy_seconds=busy, num_steps=steps, **lower_seconds)
