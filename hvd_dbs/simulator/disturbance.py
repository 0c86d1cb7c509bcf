"""What every kind of disturbance has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.checks import require
from hvd_dbs.simulator.periods import Periods


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that happens to ranks.

    Attributes:
        ranks: To whom; None: to all.
    """

    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.ranks is not None:
            require("ranks", self.ranks, bool(self.ranks), "at least one rank, or no `ranks`: all")
            require("ranks", self.ranks, min(self.ranks) >= 0, "ranks from 0 on")

    def on(self, size: int) -> NDArray[np.int64]:
        """The ranks concerned, ascending.

        Raises:
            ValueError: If a rank is not one of `size`.
        """
        if self.ranks is None:
            return np.arange(size)
        expected = f"ranks below {size}: the scenario has {size} ranks"
        require("ranks", self.ranks, max(self.ranks) < size, expected)
        return np.unique(np.asarray(self.ranks, dtype=np.int64))

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """What happens in `num_steps` steps to a cluster of `size` ranks."""
        return Periods.none()
