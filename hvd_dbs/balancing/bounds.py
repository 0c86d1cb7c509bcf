"""What local batch sizes are allowed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES = 2**31
"""Samples of a step, at most: so many times a million ranks is exact in 64 bits, floats too."""


@dataclass(frozen=True)
class Bounds:
    """Fewest and most samples of each rank in a step, and their common divisor.

    Attributes:
        minimum: Fewest samples by rank.
        maximum: Most samples by rank; None where a rank has no limit.
        multiple_of: Every local batch size is a multiple of this.
        multiples: What each rank's batch size is a multiple of, by rank, where that differs; each
            divides the next larger one, and `multiple_of` is the smallest. None: `multiple_of`.

    Example:
        >>> Bounds.of(3, minimum=1, maximum=[None, 64, 32]).maximum
        (None, 64, 32)
    """

    minimum: tuple[int, ...]
    maximum: tuple[int | None, ...]
    multiple_of: int = 1
    multiples: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.minimum) != len(self.maximum):
            raise ValueError(
                f"min_batch_size has {len(self.minimum)} entries and max_batch_size "
                f"{len(self.maximum)}; expected one per rank in both."
            )
        if not 1 <= self.multiple_of <= MOST_SAMPLES:
            raise ValueError(
                f"multiple_of={self.multiple_of} must be at least 1 and at most {MOST_SAMPLES}."
            )
        ordered = sorted(set(self.multiples or ()))
        for small, large in itertools.pairwise(ordered):
            if small < 1 or large % small:
                raise ValueError(
                    f"Local batch sizes are to be multiples of {small} on some ranks and of "
                    f"{large} on others, and {small} does not divide {large}. Give numbers of "
                    f"which each divides the next larger one, such as 8, 16 and 32."
                )
        for rank, (low, high) in enumerate(zip(self.minimum, self.maximum, strict=True)):
            if low < 0:
                raise ValueError(f"min_batch_size={low} of rank {rank} must not be negative.")
            if high is not None and high < low:
                raise ValueError(
                    f"max_batch_size={high} of rank {rank} is below its min_batch_size={low}."
                )

    @classmethod
    def of(
        cls,
        size: int,
        minimum: int | Sequence[int] = 0,
        maximum: int | Sequence[int | None] | None = None,
        multiple_of: int | Sequence[int] = 1,
    ) -> Bounds:
        """Bounds for `size` ranks from one number for all ranks or one per rank.

        Raises:
            ValueError: If a sequence has not one entry per rank, or a bound is impossible, or of
                two multiples the smaller one does not divide the larger one.
        """
        steps = [multiple_of] if isinstance(multiple_of, int) else list(multiple_of)
        low = [minimum] * size if isinstance(minimum, int) else list(minimum)
        high: list[int | None] = (
            [maximum] * size if maximum is None or isinstance(maximum, int) else list(maximum)
        )
        named: list[tuple[str, Sequence[int | None]]]
        named = [("min_batch_size", low), ("max_batch_size", high)]
        if not isinstance(multiple_of, int):
            named.append(("multiple_of", steps))
        for name, values in named:
            if len(values) != size:
                raise ValueError(
                    f"{name}={tuple(values)} has {len(values)} entries for {size} ranks. "
                    f"Give one number, or one per rank."
                )
        multiples = tuple(steps) if len(set(steps)) > 1 else None
        return cls(tuple(low), tuple(high), min(steps, default=1), multiples)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.minimum)

    @cached_property
    def multiple_by_rank(self) -> NDArray[np.int64]:
        """What each rank's batch size is a multiple of, shape `[size]`."""
        return np.array(self.multiples or [self.multiple_of] * self.size, dtype=np.int64)

    @cached_property
    def _limits(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Fewest units, and most samples with a huge number for no limit."""
        none = 2 * MOST_SAMPLES
        lows = [min(m, none) for m in self.minimum]
        highs = [none if m is None else min(m, none) for m in self.maximum]
        step = self.multiple_by_rank
        low = -(-np.asarray(lows, dtype=np.int64) // step) * (step // self.multiple_of)
        return low, np.asarray(highs, dtype=np.int64)

    def in_units(self, total: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bounds counted in units of `multiple_of`, shape `[size]` each; no limit is `total`."""
        low, high = self._limits
        step = self.multiple_by_rank
        most = np.minimum(high, max(total, 0)) // step * (step // self.multiple_of)
        return low.copy(), most

    def allow(self, batch_sizes: Sequence[int] | NDArray[np.float64]) -> bool:
        """Whether a plan with these samples by rank is within the bounds."""
        samples = np.asarray(batch_sizes, dtype=np.float64)  # Faster than whole numbers.
        if samples.shape != (self.size,):
            return False
        low, high = self.in_units(int(samples.sum()))
        units, steps = samples / self.multiple_of, samples / self.multiple_by_rank
        return bool(np.all((low <= units) & (units <= high) & (steps == np.floor(steps))))

    def reaches(self, total: int, ranks: NDArray[np.bool_], most: int) -> bool:
        """Whether some of the ranks can have so many samples together.

        Args:
            total: Samples of these ranks.
            ranks: Which, shape `[size]`.
            most: Samples of all ranks, which none of them exceeds.
        """
        low, high = (units[ranks] * self.multiple_of for units in self.in_units(most))
        left, multiples = total - int(low.sum()), self.multiple_by_rank[ranks]
        # Where each multiple divides the next one, as many as possible of the largest will do.
        for multiple in np.unique(multiples)[::-1].tolist():
            room = int((high - low)[multiples == multiple].sum())
            left -= min(max(left, 0) // multiple * multiple, room)
        return left == 0

    def check(self, total: int) -> None:
        """Raises ValueError unless some plan within the bounds has `total` samples."""
        if total in self._reached:
            return
        if total < 0:
            raise ValueError(
                f"global_batch_size={total} must not be negative. Give the number of samples that "
                f"all {self.size} ranks together process in a step."
            )
        if total > MOST_SAMPLES:
            raise ValueError(
                f"global_batch_size={total} is more than {MOST_SAMPLES} samples, the most that a "
                f"step may have. Lower it."
            )
        if total % self.multiple_of:
            raise ValueError(
                f"global_batch_size={total} is not a multiple of {self.multiple_of}, as all local "
                f"batch sizes are (multiple_of, micro_batch_size). "
                f"Use global_batch_size={total - total % self.multiple_of} or "
                f"{total + self.multiple_of - total % self.multiple_of}."
            )
        low, high = self.in_units(total)
        least, most = (int(units.sum()) * self.multiple_of for units in (low, high))
        step = f" in multiples of {self.multiple_of}" if self.multiple_of > 1 else ""
        if self.multiples is not None:
            step = f" in multiples of {_shown(self.multiples)}"
        if least > total and self.multiple_of == 1 and set(self.minimum) == {1}:
            raise ValueError(
                f"global_batch_size={total} is not one sample for each of the {self.size} ranks. "
                f"Use at least {self.size}, or start fewer ranks."
            )
        if least > total:
            raise ValueError(
                f"min_batch_size={_shown(self.minimum)}{step} needs at least {least} samples a "
                f"step but global_batch_size={total}.\n"
                f"Lower a bound or raise global_batch_size."
            )
        if np.any(low > high):
            rank = int(np.argmax(low > high))
            raise ValueError(
                f"Rank {rank} has no multiple of {self.multiple_by_rank[rank]} between its "
                f"min_batch_size={self.minimum[rank]} and max_batch_size={self.maximum[rank]}. "
                f"Widen its bounds."
            )
        if most < total:
            raise ValueError(
                f"max_batch_size={_shown(self.maximum)}{step} allows at most {most} samples a "
                f"step but global_batch_size={total}.\n"
                f"Every sample of the global batch needs a rank. "
                f"Raise a bound or lower global_batch_size."
            )
        if not self.reaches(total, np.ones(self.size, dtype=np.bool_), total):
            raise ValueError(
                f"global_batch_size={total} is no sum of local batch sizes within their bounds"
                f"{step}. Use a multiple of {max(self.multiple_by_rank)}, or widen a bound."
            )
        self._reached.add(total)

    @cached_property
    def _reached(self) -> set[int]:
        """Sums that some plan has: with thousands of ranks, to check one again takes long."""
        return set()


def _shown(values: Sequence[int | None], most: int = 16) -> str:
    text = ", ".join(str(value) for value in values[:most])
    return f"({text}{', ...' if len(values) > most else ''})"
