"""When a rank could be done, given its busy time: some communication sticks out of computing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ExposedCommunication:
    """f = max(t, kappa t + T_o): Cannikin's f_i as a function of the busy time t.

    The first bucket of gradients is ready after the part kappa of it, and all buckets but the last
    then take T_o. Both have shape `[size]`.

    Attributes:
        first_part: kappa, from 0 to 1.
        overlap_seconds: T_o.

    References:
        Nie, Maghakian, Liu, "Cannikin", 2024, arXiv 2402.05302.
    """

    first_part: NDArray[np.float64]
    overlap_seconds: NDArray[np.float64]

    def known(self) -> tuple[NDArray[np.intp], ExposedCommunication]:
        """The ranks of which both are known, and T_o is more than nothing; theirs alone."""
        ranks = np.flatnonzero((self.first_part > 0) & (self.overlap_seconds > 0))
        return ranks, ExposedCommunication(self.first_part[ranks], self.overlap_seconds[ranks])

    def finish(
        self, busy_seconds: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """When ranks of these busy seconds, shape `[points, size]`, could be done.

        Returns:
            f, and d log f / d log t, kappa t / f where communication sticks out and 1 elsewhere,
            same shape; and what of f at the shortest t does not depend on t, T_o or 0, `[size]`.
        """
        of_first = self.first_part * busy_seconds
        exposed = of_first + self.overlap_seconds
        sticks_out = exposed > busy_seconds
        elasticity = np.where(sticks_out, of_first / exposed, 1.0)
        # Where it sticks out at all, it does at the shortest.
        fixed = np.where(sticks_out.any(axis=0), self.overlap_seconds, 0.0)
        return np.fmax(busy_seconds, exposed), elasticity, fixed
