"""Where each rank's samples of an epoch lie: in each global batch, or in one piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

from hvd_dbs.sampling.cursor import Interval, merge_intervals
from hvd_dbs.sampling.windows import Window, num_steps, step_batch_sizes, window


class Layout(Protocol):
    """Cuts the positions of an epoch into one window per step and rank.

    Attributes:
        plans_change_within: Whether a plan may change inside an epoch.
    """

    plans_change_within: bool

    def window(self, step: int, rank: int, batch_sizes: Sequence[int], num_samples: int) -> Window:
        """What a rank reads in a step; arguments as those of `sampling.window`."""
        ...

    def used(
        self, num_steps: int, batch_sizes: Sequence[int], num_samples: int
    ) -> tuple[Interval, ...]:
        """Positions that all ranks have read after so many steps of an epoch."""
        ...


class Windows:
    """Each global batch is a stretch of the order and holds the same samples whatever the plan."""

    plans_change_within = True

    def window(self, step: int, rank: int, batch_sizes: Sequence[int], num_samples: int) -> Window:
        """The rank's part of the step's global batch."""
        return window(step, rank, batch_sizes, num_samples)

    def used(
        self, num_steps: int, batch_sizes: Sequence[int], num_samples: int
    ) -> tuple[Interval, ...]:
        """From the first position on."""
        return merge_intervals([(0, min(num_steps * sum(batch_sizes), num_samples))])


class ContiguousShards:
    """Each rank has one consecutive piece of the order, in proportion to the plan, and reads on.

    As DBS describes it. Which samples meet in a global batch depends on the plan; how many of them
    each rank has in each step does not differ from `Windows`. The plan of an epoch is that of its
    first step.

    Example:
        >>> shards = ContiguousShards()
        >>> [shards.window(step, 1, batch_sizes=(3, 1), num_samples=10) for step in range(3)]
        ... # doctest: +NORMALIZE_WHITESPACE
        [Window(start=8, count=1, weight=1), Window(start=9, count=1, weight=1),
         Window(start=9, count=1, weight=0)]

    References:
        Ye et al., "DBS: Dynamic Batch Size For Distributed Deep Neural Network Training", 2020,
        arXiv 2007.11831: the data set is cut in the shares of the batch.
    """

    plans_change_within = False

    def window(self, step: int, rank: int, batch_sizes: Sequence[int], num_samples: int) -> Window:
        """The next samples of the rank's piece; padding samples where it has none left."""
        start, end = _pieces(batch_sizes, num_samples)[rank]
        count = step_batch_sizes(step, batch_sizes, num_samples)[rank]
        if count:
            return Window(start + step * batch_sizes[rank], count, count)
        most = min(batch_sizes[rank], num_samples - step * sum(batch_sizes))
        count = max(1, min(most, num_samples))
        return Window(max(0, min(end, num_samples) - count), count, 0)

    def used(
        self, num_steps: int, batch_sizes: Sequence[int], num_samples: int
    ) -> tuple[Interval, ...]:
        """The beginning of each rank's piece."""
        return merge_intervals(
            (start, min(start + num_steps * batch_size, end))
            for (start, end), batch_size in zip(
                _pieces(batch_sizes, num_samples), batch_sizes, strict=True
            )
        )


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {"windows": Windows(), "contiguous": ContiguousShards()}
)


def _pieces(batch_sizes: Sequence[int], num_samples: int) -> list[Interval]:
    """From where to where each rank's piece goes."""
    last_step = num_steps(num_samples, sum(batch_sizes)) - 1
    last = step_batch_sizes(last_step, batch_sizes, num_samples)
    lengths = [
        last_step * batch_size + rest for batch_size, rest in zip(batch_sizes, last, strict=True)
    ]
    ends = list(accumulate(lengths))
    return [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
