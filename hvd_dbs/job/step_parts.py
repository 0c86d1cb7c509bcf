"""What a step consists of beyond the work of its slowest rank; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class SeenRound(Protocol):
    """What ranks have measured in a round, in seconds; NaN: unknown."""

    @property
    def busy_seconds(self) -> Sequence[float] | NDArray[np.float64]:
        """A rank's own work in a step, by rank."""

    @property
    def first_bucket_seconds(self) -> Sequence[float] | NDArray[np.float64]:
        """The part of it until its first bucket of gradients is ready, by rank."""

    @property
    def step_seconds(self) -> float:
        """A whole step."""

    @property
    def overlap_seconds(self) -> float:
        """T_o, the communication of all buckets but the last."""

    @property
    def last_bucket_seconds(self) -> float:
        """T_u, that of the last one."""

    @property
    def negotiation_seconds(self) -> float:
        """What a sum takes whatever its size."""


@dataclass(frozen=True)
class StepParts:
    """Parts of a step; NaN: unknown.

    Attributes:
        waiting: In which ranks wait for those that are slower, their mean: what balancing can gain.
        rest: Beyond the longest busy time: the next three, where they are known.
        communication: Which nothing hides: T_u, and what of T_o goes on when all gradients are
            ready.
        negotiation: Of this at least, that of one bucket.
        unsteady: In which a rank that is slower in this step, not in the mean, is waited for.
    """

    waiting: float
    rest: float
    communication: float
    negotiation: float
    unsteady: float

    @classmethod
    def of(cls, seen: SeenRound) -> StepParts:
        """Those of a round."""
        busy_seconds = _known(seen.busy_seconds)
        if not busy_seconds.size or not seen.step_seconds > 0:
            return cls(*[math.nan] * 5)
        longest = float(busy_seconds.max())
        waiting = float(np.mean(longest - busy_seconds))
        rest = max(seen.step_seconds - longest, 0.0)
        first_seconds = _known(seen.first_bucket_seconds)
        sticks_out = float(first_seconds.max(initial=-math.inf)) + seen.overlap_seconds - longest
        # T_o and T_u are those of the newest steps, which may be of earlier rounds too.
        communication = np.minimum(max(sticks_out, 0.0) + seen.last_bucket_seconds, rest)
        negotiation = np.minimum(seen.negotiation_seconds, communication)
        unsteady = np.maximum(rest - communication, 0.0)
        parts = (waiting, rest, float(communication), float(negotiation), float(unsteady))
        return cls(*(part / seen.step_seconds for part in parts))

    @property
    def as_row(self) -> NDArray[np.float64]:
        """All of them, shape `[5]`."""
        return np.array(
            [self.waiting, self.rest, self.communication, self.negotiation, self.unsteady]
        )

    @property
    def text(self) -> str:
        """Parts that are communication and the rest, as far as they are known."""
        if not math.isfinite(self.communication):
            return ""
        of_it = f" (negotiation {percent(self.negotiation)})"
        return (
            f"{percent(self.communication)} communication that nothing hides"
            f"{of_it if math.isfinite(self.negotiation) else ''}, {percent(self.unsteady)} waiting "
            f"for ranks that are slow by turns"
        )


def percent(part: float) -> str:
    """A part as people write it, "-" where it is unknown."""
    return f"{100 * part:.0f} %" if math.isfinite(part) else "-"


def _known(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    row = np.asarray(values, dtype=np.float64)
    return row[np.isfinite(row)]
