"""When a rank could be done, given its busy time: some communication sticks out of computing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ExposedCommunication:
    """f = max(t, r t + T_o): Cannikin's f_i as a function of the busy time t.

    The first bucket of gradients is ready after the part r of it, and all buckets but the last then
    take T_o. Where either is unknown, NaN, f = t. Both have shape `[size]`.

    Attributes:
        first_part: r, from 0 to 1.
        overlap_seconds: T_o.

    References:
        Nie, Maghakian, Liu, "Cannikin", 2024, arXiv 2402.05302.
    """

    first_part: NDArray[np.float64]
    overlap_seconds: NDArray[np.float64]

    def finish_seconds(self, busy_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """When ranks of these busy seconds could be done, shape `[..., size]`."""
        exposed = self.first_part * busy_seconds + self.overlap_seconds
        return np.asarray(np.fmax(busy_seconds, exposed))

    def slope(self, busy_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """D f / d t there, same shape: r where communication sticks out, else 1."""
        return np.where(self._sticks_out(busy_seconds), self.first_part, 1.0)

    def fixed_seconds(self, busy_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """What of f does not depend on t, same shape: T_o where it sticks out, else 0."""
        return np.where(self._sticks_out(busy_seconds), self.overlap_seconds, 0.0)

    def _sticks_out(self, busy_seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
        exposed = self.first_part * busy_seconds + self.overlap_seconds
        return np.asarray(exposed > busy_seconds)
