"""Cuts each global batch into one window per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Window:
    """The samples of one rank in one step, as positions in the order of the epoch.

    Attributes:
        start: First position.
        count: Number of positions.
        weight: Samples that count; 0 where the positions are padding of a rank without any.
    """

    start: int
    count: int
    weight: int


def num_steps(num_samples: int, global_batch_size: int) -> int:
    """Steps of an epoch, the last of which may be partial.

    Example:
        >>> num_steps(num_samples=10, global_batch_size=4)
        3
    """
    return -(-num_samples // global_batch_size)


def step_batch_sizes(step: int, batch_sizes: Sequence[int], num_samples: int) -> tuple[int, ...]:
    """Samples by rank in one step: the plan's, or a part of it in a last, partial step.

    Args:
        step: Step of the epoch, from 0.
        batch_sizes: The plan in force in that step.
        num_samples: Samples of the epoch.

    Returns:
        Samples by rank, shape `[size]`. A partial step keeps the plan's borders in proportion,
        so each rank has its quota rounded up or down, and may have none.

    Example:
        >>> step_batch_sizes(2, batch_sizes=(3, 1), num_samples=10)
        (2, 0)
    """
    global_batch_size = sum(batch_sizes)
    left = num_samples - step * global_batch_size
    if not left > 0:
        raise ValueError(
            f"step={step} is not inside an epoch of "
            f"{num_steps(num_samples, global_batch_size)} steps."
        )
    if left >= global_batch_size:
        return tuple(batch_sizes)
    borders = [-(-left * end // global_batch_size) for end in accumulate(batch_sizes, initial=0)]
    return tuple(end - start for start, end in pairwise(borders))


def window(step: int, rank: int, batch_sizes: Sequence[int], num_samples: int) -> Window:
    """What `rank` reads in `step`.

    Global step s owns the positions from s * B on; a rank owns those after the ranks before it.
    A plan moves the borders inside a global batch, never the batch. A rank that has no sample in
    a partial step gets some of that step's samples with weight 0, as many as it is used to: a
    model cannot run on an empty batch, and the real samples of the same batch are the ones that
    surprise it least.

    Args:
        step: Step of the epoch, from 0.
        rank: Whose window.
        batch_sizes: The plan in force in that step, shape `[size]`.
        num_samples: Samples of the epoch.

    Example:
        >>> window(1, rank=1, batch_sizes=(3, 1), num_samples=10)
        Window(start=7, count=1, weight=1)
        >>> window(2, rank=1, batch_sizes=(3, 1), num_samples=10)
        Window(start=8, count=1, weight=0)
    """
    counts = step_batch_sizes(step, batch_sizes, num_samples)
    first = step * sum(batch_sizes)
    if counts[rank] == 0:
        return Window(first, max(1, min(batch_sizes[rank], sum(counts))), 0)
    return Window(first + sum(counts[:rank]), counts[rank], counts[rank])
