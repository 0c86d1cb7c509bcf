"""What each sample costs, and where a global batch is cut so that ranks get shares of the cost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_UNITS = (1 << 32) - 1


@dataclass(frozen=True)
class SampleCosts:
    """Costs of all samples, as whole numbers: all ranks cut at the same places.

    Attributes:
        units: The cost of each sample in parts of the largest one, uint32 of shape
            `[num_samples]`.
        mean: Mean of `units`.
    """

    units: NDArray[np.uint32]
    mean: float

    @classmethod
    def of(cls, given: Any, num_samples: int) -> SampleCosts:
        """Checks what a user says of the costs.

        Args:
            given: One number per sample that is not negative, in any unit, shape `[num_samples]`.
            num_samples: Samples of the data set.

        Raises:
            ValueError: If it is something else, or all costs are 0.

        Example:
            >>> costs = SampleCosts.of([10, 5, 0], num_samples=3)
            >>> (costs.units / costs.mean).round(3).tolist()
            [2.0, 1.0, 0.0]
        """
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"cost is no array of numbers ({error}); expected one number per sample."
            ) from error
        if values.shape != (num_samples,):
            raise ValueError(
                f"cost has shape {values.shape} but the data set has {num_samples} samples; "
                f"expected one number per sample, shape ({num_samples},)."
            )
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if bad.size:
            raise ValueError(
                f"cost[{bad[0]}] is {values[bad[0]]}, and {bad.size - 1} others are negative or "
                f"not finite too; expected numbers of at least 0, such as lengths or pixels."
            )
        most = values.max()
        if not most > 0:
            raise ValueError("cost is 0 for all samples; leave it out where all cost the same.")
        # One division and one product of each: the same to the last bit on every machine.
        units = np.rint(values / most * _MOST_UNITS).astype(np.uint32)
        return cls(units, float(units.mean(dtype=np.float64)))

    @property
    def identity(self) -> str:
        """Text that is equal on all ranks if their costs are."""
        return hashlib.sha256(self.units.data).hexdigest()[:16]


def cut_by_cost(units: NDArray[np.int64], batch_sizes: Sequence[int]) -> list[int]:
    """Cuts a global batch into consecutive pieces whose costs are as the plan's batch sizes.

    Each border is where the cost before it is nearest to what the plan gives to the ranks before
    it. Since a rank without a sample has to run one for nothing, each has at least one, as long as
    there are enough. No rank has more than one sample's cost above its part of the cost.

    Args:
        units: Costs of the samples in their order, not negative, shape `[count]`; if all are 0
            they count the same. Their sum fits into int64.
        batch_sizes: The plan, shape `[size]`.

    Returns:
        The samples before each rank, and `count`: `[size + 1]` numbers.

    Example:
        >>> cut_by_cost(np.array([4, 1, 1, 1, 1]), batch_sizes=(3, 3))
        [0, 1, 5]
        >>> cut_by_cost(np.array([2, 2, 2, 2]), batch_sizes=(3, 1))
        [0, 3, 4]
    """
    count, size, total = len(units), len(batch_sizes), sum(batch_sizes)
    if not units.any():
        units = np.ones_like(units)
    before = np.concatenate([[0], np.cumsum(units, dtype=np.int64)])
    cost = int(before[-1])
    # Python's numbers: the products need not fit into 64 bits.
    wanted = np.array([cost * part // total for part in accumulate(batch_sizes, initial=0)])
    above = np.searchsorted(before, wanted)
    below = np.maximum(above - 1, 0)
    borders = np.where(wanted - before[below] <= before[above] - wanted, below, above)
    borders[0], borders[-1] = 0, count
    if count >= size:
        ranks = np.arange(size + 1)
        borders = np.maximum.accumulate(borders - ranks) + ranks
        borders = np.minimum(borders, count - size + ranks)
    found: list[int] = borders.tolist()
    return found
