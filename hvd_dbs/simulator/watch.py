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
        present: The ranks that take part.

    Attributes:
        expected: What their steps are expected to take; None: nothing is a change.
    """

    def __init__(self, scenario: Scenario, present: NDArray[np.int64]) -> None:
        self._scenario, self._present = scenario, present
        self.expected: ExpectedSteps | None = None
        self._changes: tuple[NDArray[np.int64], NDArray[np.bool_]] | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the last look found some."""
        return self._changes is not None

    def look(self, pieces: Sequence[Played]) -> None:
        """Looks at the last steps of the round under way."""
        if self.expected is None:
            return
        steps, busy, samples, _ = self._last_steps(pieces, STEPS_WATCHED)
        changed = self.expected.changes(busy, samples, self._present.size)
        self._changes = (steps, changed) if changed.any() else None

    def end_round(self, pieces: Sequence[Played], measurement: Measurement) -> Measurement:
        """What the ranks measured in a round; of ranks that have changed, the changed steps alone.

        Args:
            pieces: The round's steps.
            measurement: What they would have measured without a change.
        """
        if self._changes is None:
            return measurement
        seen_at, changed = self._changes
        self._changes = None
        steps, busy, samples, is_first = self._last_steps(pieces, _MOST_STEPS)
        ranks = np.flatnonzero(changed.any(axis=0))
        # The round goes on for a step while the signal travels.
        reported = np.repeat((steps > seen_at[0])[:, np.newaxis], len(ranks), axis=1)
        reported[np.isin(steps, seen_at)] = changed[np.isin(seen_at, steps)][:, ranks]
        batch_sizes = pieces[-1].batch_sizes[self._present]
        reported &= ((samples == batch_sizes) & ~is_first)[:, ranks]
        return _replaced(measurement, ranks, np.where(reported, busy[:, ranks], np.nan))

    def _last_steps(
        self, pieces: Sequence[Played], most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Numbers, busy seconds and samples of the last measured steps, the last one first.

        And which of them were the first at a new batch size.
        """
        measured = (
            (
                piece.start + index,
                piece.busy[index, self._present],
                piece.batch_sizes[self._present],
                piece.is_first[self._present] & (index == 0),
            )
            for piece in reversed(pieces)
            for index in reversed(range(len(piece.busy)))
            if self._scenario.is_measured(piece.start + index)
        )
        last = list(itertools.islice(measured, most))
        shape = (len(last), self._present.size)
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
