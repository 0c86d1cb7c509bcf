"""What one rank reads of an epoch, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.sampling.costs import SampleCosts, cut_by_cost
from hvd_dbs.sampling.epoch_order import EpochOrder
from hvd_dbs.sampling.epoch_part import EpochPart
from hvd_dbs.sampling.layouts import Layout
from hvd_dbs.sampling.read_ahead import ReadAhead
from hvd_dbs.sampling.windows import step_batch_sizes

_POSITIONS = 8192


@dataclass(frozen=True)
class RankStep:
    """What a rank does in one step.

    Attributes:
        num_samples: Samples that count; 0 where it has padding samples only.
        work: What they cost, in samples of mean cost; their number where all cost the same.
    """

    num_samples: int
    work: float


class Reader(Protocol):
    """Reads what is left of an epoch; for one thread."""

    def samples(self, step: int, batch_sizes: Sequence[int]) -> NDArray[np.int64]:
        """The numbers of the samples that the rank reads in a step, at least one.

        Args:
            step: Step of what is left of the epoch.
            batch_sizes: The plan in force in that step, shape `[size]`.
        """
        ...

    def rank_step(self, step: int, batch_sizes: Sequence[int]) -> RankStep:
        """What of that counts; arguments as those of `samples`."""
        ...


class CountReader:
    """Ranks have as many samples as the plan says.

    Args:
        order: The order of the whole epoch.
        part: What is left of it.
        rank: Whose samples.
        layout: Where in the order they are.
    """

    def __init__(self, order: EpochOrder, part: EpochPart, rank: int, layout: Layout) -> None:
        self._order = ReadAhead(order)
        self._part, self._rank, self._layout = part, rank, layout

    def samples(self, step: int, batch_sizes: Sequence[int]) -> NDArray[np.int64]:
        """As `Reader.samples`."""
        mine = self._layout.window(step, self._rank, batch_sizes, self._part.num_left)
        return _at(self._order, self._part, mine.start, mine.count)

    def rank_step(self, step: int, batch_sizes: Sequence[int]) -> RankStep:
        """As `Reader.rank_step`."""
        count = step_batch_sizes(step, batch_sizes, self._part.num_left)[self._rank]
        return RankStep(count, float(count))


class CostReader:
    """Ranks have shares of each global batch's cost as the plan says, in the windows layout.

    Looks up whole global batches, some thousand positions at a time.

    Args:
        order: The order of the whole epoch.
        part: What is left of it.
        rank: Whose samples.
        costs: Of all samples.

    Example:
        >>> order, costs = EpochOrder(4, seed=None, epoch=0), SampleCosts.of([3, 1, 1, 1], 4)
        >>> reader = CostReader(order, EpochPart(4), rank=1, costs=costs)
        >>> reader.samples(0, batch_sizes=(2, 2)).tolist(), reader.rank_step(0, (2, 2))
        ([1, 2, 3], RankStep(num_samples=3, work=2.0))
    """

    def __init__(self, order: EpochOrder, part: EpochPart, rank: int, costs: SampleCosts) -> None:
        self._order, self._part, self._rank, self._costs = order, part, rank, costs
        self._start = 0
        self._known = np.zeros(0, dtype=np.int64)

    def samples(self, step: int, batch_sizes: Sequence[int]) -> NDArray[np.int64]:
        """As `Reader.samples`; a rank without any gets padding samples of its step."""
        batch = self._global_batch(step, sum(batch_sizes))
        start, end = self._window(batch, batch_sizes)
        if start == end:
            return batch[: max(1, batch_sizes[self._rank])]
        return batch[start:end]

    def rank_step(self, step: int, batch_sizes: Sequence[int]) -> RankStep:
        """As `Reader.rank_step`."""
        batch = self._global_batch(step, sum(batch_sizes))
        start, end = self._window(batch, batch_sizes)
        units = self._costs.units[batch[start:end]].sum(dtype=np.float64)
        return RankStep(end - start, float(units / self._costs.mean))

    def _window(self, batch: NDArray[np.int64], batch_sizes: Sequence[int]) -> tuple[int, int]:
        borders = cut_by_cost(self._costs.units[batch].astype(np.int64), batch_sizes)
        return borders[self._rank], borders[self._rank + 1]

    def _global_batch(self, step: int, size: int) -> NDArray[np.int64]:
        """The numbers of all samples of a step, shape `[count]`."""
        num_left = self._part.num_left
        start, end = step * size, min((step + 1) * size, num_left)
        if start < self._start or end > self._start + len(self._known):
            count = min(max(size, _POSITIONS // size * size), num_left - start)
            self._known, self._start = _at(self._order, self._part, start, count), start
        return self._known[start - self._start : end - self._start]


def _at(
    order: EpochOrder | ReadAhead, part: EpochPart, start: int, count: int
) -> NDArray[np.int64]:
    """The samples at some positions of what is left of an epoch."""
    stretches = part.positions(start, count)
    found = [order.indices(first, end - first) for first, end in stretches]
    return found[0] if len(found) == 1 else np.concatenate(found)
