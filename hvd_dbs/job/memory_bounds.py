"""Most samples that fit into a rank's memory, as far as that was found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.comm.collective import Collective

_ACCURACY = 1 / 32
"""A bound is found up to this part of it: each step nearer costs a pass that runs out of memory."""

_NO_LIMIT = -1

_IN_TRAINING = 0.95
"""The part of it that training gets, which also holds batches that are read ahead. Under a limit of
the process, steps of 5120 samples were found to fit, and 4700 to 5100 did in training."""

_NEXT_TRY = 0.9
"""After a step that did not fit, this part of its samples is tried."""


class StepTooLargeError(MemoryError):
    """A step has run out of memory, and one of fewer samples may not."""


class MemoryBounds:
    """What this rank has found out about its memory, beside the bounds that were given.

    Args:
        is_wanted: Whether a search is wanted before training, `max_batch_size="auto"`.

    Attributes:
        is_wanted: Likewise.
        most: Most samples that fit, for the model that is trained; None: not known, or all fit that
            were tried so far, and a larger global batch may not.
    """

    def __init__(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self.most: int | None = None
        self._model, self._tried = "", 0

    def begin_training(self, model: str) -> None:
        """What was found for a model of another fingerprint is not known of this one."""
        if model != self._model:
            self._model, self.most, self._tried = model, None, 0

    def is_known(self, num_samples: int) -> bool:
        """Whether there is nothing to search where a rank gets so many samples at most."""
        return self.most is not None or num_samples <= self._tried

    def note(self, most: int) -> None:
        """So many samples fit, as an earlier training has found."""
        self.most = most

    def note_found(self, found: int, tried: int) -> None:
        """So many samples were found to fit, of those that a rank may get at most."""
        self.most = max(1, round(_IN_TRAINING * found)) if found < tried else None
        self._tried = tried

    def note_lack(self, num_samples: int) -> int:
        """A step of so many samples did not fit. Returns how many will be tried."""
        fewer = int(_NEXT_TRY * num_samples)
        self.most = fewer if self.most is None else min(self.most, fewer)
        return self.most

    def by_rank(self, collective: Collective) -> list[int | None]:
        """What all ranks have found out: `most` by rank. Collective."""
        rows = collective.allgather(np.array([_NO_LIMIT if self.most is None else self.most]))
        return [None if most == _NO_LIMIT else most for most in rows[:, 0].tolist()]


def within_memory(bounds: Bounds, found: Sequence[int | None]) -> Bounds:
    """Bounds that also hold what ranks have found out.

    Args:
        bounds: Those that were given.
        found: Most samples that fit into the memory of each rank; None: not known.

    Raises:
        ValueError: If a rank's memory holds less than its fewest samples.
    """
    for rank, (low, most) in enumerate(zip(bounds.minimum, found, strict=True)):
        step = int(bounds.multiple_by_rank[rank])
        if most is not None and most // step * step < max(low, 1):
            raise ValueError(
                f"The memory of rank {rank} holds a step of {most} samples, but its local "
                f"batch size is to be at least {low} and a multiple of {step}. Lower "
                f"min_batch_size or multiple_of, or leave out the rank."
            )
    limits = [
        min((one for one in pair if one is not None), default=None)
        for pair in zip(bounds.maximum, found, strict=True)
    ]
    return Bounds(bounds.minimum, tuple(limits), bounds.multiple_of, bounds.multiples)


def largest_that_fits(fits: Callable[[int], bool], start: int, most: int) -> int:
    """The largest number of samples that fits, up to 1/32; 0 if none does.

    Grows by doubling, so that memory is asked for little by little, then halves what is between.

    Args:
        fits: Whether so many samples fit; less than what fits does, too.
        start: The number to begin with.
        most: The largest number of interest.

    Example:
        >>> largest_that_fits(lambda number: number <= 100, start=8, most=1000)
        100
        >>> largest_that_fits(lambda number: True, start=8, most=1000)
        1000
    """
    low, number = 0, min(start, most)
    while fits(number):
        if number == most:
            return most
        low, number = number, min(2 * number, most)
    high = number
    while high - low > max(1, int(_ACCURACY * low)):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
