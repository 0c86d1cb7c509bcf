"""Step time as a function of the local batch size, for all ranks at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TimeCurves(Protocol):
    """What the time models of all ranks say: seconds against samples."""

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        ...

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        ...


@dataclass(frozen=True)
class AffineCurves:
    """t_i(b) = fixed_i + per_sample_i * b.

    Attributes:
        fixed: Seconds of an empty step, shape `[size]`.
        per_sample: Seconds that each sample adds, shape `[size]`.
    """

    fixed: NDArray[np.float64]
    per_sample: NDArray[np.float64]

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        return self.fixed + self.per_sample * batch_sizes

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        finite = np.isfinite(self.fixed) & np.isfinite(self.per_sample)
        return finite & (self.fixed >= 0) & (self.per_sample > 0)
