"""How long gradients are on their way, from what the clocks of all ranks saw of the same steps."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Measurement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.negotiation_time import negotiation_seconds

_STEPS_SENT = 8
"""Steps of a round that ranks compare, the last ones: enough for a median, and few enough numbers
to be sent in each round (two a step)."""
_STEPS_KEPT = 16
"""Steps that a figure is the median of: one of a few steps would move plans by its noise."""

ROW_SIZE = 2 * _STEPS_SENT
"""Numbers that a rank sends in a round."""


@dataclass(frozen=True)
class Communication:
    """What the buckets of gradients take, the same on all ranks.

    A rank's clock sees a bucket on its way from when this rank has it ready until its sum is back.
    That includes waiting for ranks that are later with it; the rank that is last waits for nobody.
    So the communication of a step is the least that a rank has seen of it. All ranks count the
    same steps, so no two clocks are compared.

    Attributes:
        steps: T_o (all buckets but the last) and T_u (the last one) of the newest steps that all
            ranks have seen, oldest first, shape `[k, 2]`.
        negotiation_seconds: What a sum takes whatever its size; NaN: unknown.
    """

    steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    negotiation_seconds: float = math.nan

    @classmethod
    def first(cls, collective: Collective, row: NDArray[np.float64]) -> Communication:
        """What the first round of these ranks shows, by an exchange of its own. Collective.

        Later rounds, also of later trainings, add to it with `after` what they exchange anyway,
        which the time models of the next round use. Only the first round has nothing from before.
        """
        negotiation = negotiation_seconds(collective)
        return cls(negotiation_seconds=negotiation).after(collective.allgather(row))

    @property
    def overlap_seconds(self) -> float:
        """T_o, NaN: unknown."""
        return self._median(0)

    @property
    def last_bucket_seconds(self) -> float:
        """T_u, NaN: unknown."""
        return self._median(1)

    def _median(self, column: int) -> float:
        seconds = self.steps[:, column].tolist()
        return statistics.median(seconds) if seconds else math.nan

    def after(self, rows: NDArray[np.float64]) -> Communication:
        """With a round more.

        Args:
            rows: Those of all ranks, as `row_of` gives them, shape `[size, 16]`.
        """
        # Where a rank does not know, that one may have been the last: NaN.
        least = rows.reshape(len(rows), _STEPS_SENT, 2).min(axis=0)
        known = least[np.isfinite(least).all(axis=1)]
        return replace(self, steps=np.concatenate([self.steps, known])[-_STEPS_KEPT:])

    def added_to(self, measurement: Measurement) -> Measurement:
        """A measurement of this job's ranks that knows of it."""
        shape = measurement.batch_sizes.shape
        return replace(
            measurement,
            overlap_seconds=np.full(shape, self.overlap_seconds),
            last_bucket_seconds=np.full(shape, self.last_bucket_seconds),
        )


def row_of(overlap_seconds: NDArray[np.float64], last: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a rank sends of the steps of a round, shape `[16]`; NaN where there are fewer.

    Args:
        overlap_seconds: During which it had some bucket but the last on its way, shape `[steps]`;
            NaN where a step does not count.
        last: What the last one took, shape `[steps]`.
    """
    steps = np.column_stack([overlap_seconds, last])[-_STEPS_SENT:]
    row = np.full((_STEPS_SENT, 2), np.nan)
    row[_STEPS_SENT - len(steps) :] = steps
    return row.ravel()
