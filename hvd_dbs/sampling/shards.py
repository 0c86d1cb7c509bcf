"""Cuts a data set that is read once, without training, into one piece per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hvd_dbs.sampling.windows import num_steps


@dataclass(frozen=True)
class Shard:
    """The consecutive samples of one rank.

    Attributes:
        start: First sample.
        counts: Samples of each step, none of which is empty.
        weight: Samples that count: all, or none of them where they are padding samples of a
            rank that has none of its own.
    """

    start: int
    counts: tuple[int, ...]
    weight: int


def num_evaluation_steps(num_samples: int, batch_sizes: Sequence[int]) -> int:
    """Steps in which every rank reads its shard.

    As many as an epoch of training would have. With less than two samples per rank and step some
    ranks could not fill so many; then there are fewer steps.

    Example:
        >>> num_evaluation_steps(10, batch_sizes=(3, 1)), num_evaluation_steps(3, (1, 1))
        (3, 1)
    """
    most = num_steps(num_samples, sum(batch_sizes))
    return max(1, min(most, num_samples // len(batch_sizes)))


def shard(
    rank: int, batch_sizes: Sequence[int], num_samples: int, num_steps_wanted: int | None = None
) -> Shard:
    """What `rank` reads of a data set that all ranks together read once.

    Nothing ties the steps of different ranks together here, so each rank has one consecutive
    piece in proportion to the plan, and a sample of its own in each step: no step of any rank
    has to be left out of a metric. Only where there are fewer samples than ranks some ranks have
    none, and read the first one for nothing, since a model cannot run on an empty data set.

    Args:
        rank: Whose shard.
        batch_sizes: The plan in force, shape `[size]`.
        num_samples: Samples of the data set.
        num_steps_wanted: Steps, no fewer than those needed, and no more than samples per rank;
            None: those needed, `num_evaluation_steps`.

    Returns:
        The shard; no step has more samples than the plan gives the rank, or one more where the
        plan has less than two samples per rank.

    Example:
        >>> shard(0, batch_sizes=(3, 1), num_samples=10)
        Shard(start=0, counts=(3, 3, 1), weight=7)
        >>> shard(1, batch_sizes=(3, 1), num_samples=10)
        Shard(start=7, counts=(1, 1, 1), weight=3)
        >>> shard(1, batch_sizes=(3, 1), num_samples=1)
        Shard(start=0, counts=(1,), weight=0)
    """
    size, global_batch_size = len(batch_sizes), sum(batch_sizes)
    steps = num_steps_wanted or num_evaluation_steps(num_samples, batch_sizes)
    # One sample for each step of each rank, then the others in proportion.
    each = min(steps, num_samples // size)
    others = num_samples - each * size
    is_roomy = each >= num_steps(num_samples, global_batch_size)
    shares = [b - 1 if is_roomy else b for b in batch_sizes]
    total = max(1, sum(shares))
    borders = [
        each * i - (-others * end // total) for i, end in enumerate(accumulate(shares, initial=0))
    ]
    start, end = list(pairwise(borders))[rank]
    if start == end:
        return Shard(0, (1,) * steps, 0)
    most = max(batch_sizes[rank], -(-(end - start) // steps))
    counts, left = [], end - start
    for steps_left in range(steps, 0, -1):
        counts.append(min(most, left - (steps_left - 1)))
        left -= counts[-1]
    return Shard(start, tuple(counts), end - start)
