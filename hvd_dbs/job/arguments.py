"""What a user may give a balancer, checked."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Bounds, Controller, Strategy, strategies
from hvd_dbs.balancing.place import Place, values_by_rank

BatchSizeBound = int | Sequence[int] | NDArray[np.integer[Any]] | Mapping[str, int]
"""One number for all ranks, one per rank, or numbers by host or kind of device."""


class MicroBatchOptions(TypedDict, total=False):
    """How a local batch is cut into micro-batches; see `Balancer`."""

    micro_batch_size: BatchSizeBound | None
    allow_partial: bool


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches that a rank computes one after the other.

    Attributes:
        micro_batch_size: Samples of one; None: a local batch is computed as a whole.
        allow_partial: Whether the last one of a step may have fewer samples.
    """

    micro_batch_size: BatchSizeBound | None = None
    allow_partial: bool = False

    def __post_init__(self) -> None:
        if self.micro_batch_size is None and self.allow_partial:
            raise ValueError(
                "allow_partial=True was given without micro_batch_size. Give the samples of a "
                "micro-batch too: Balancer(512, micro_batch_size=32, allow_partial=True)."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> MicroBatches:
        """Those of the keywords that a balancer was given.

        Raises:
            TypeError: If there is another one.
            ValueError: If they do not go together.
        """
        known = [one.name for one in fields(cls)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise TypeError(
                f"Balancer was given {unknown[0]}=, which it does not know. Besides the arguments "
                f"of its signature it takes {' and '.join(known)}."
            )
        return cls(**given)

    def sizes(self, places: Sequence[Place], *, is_elastic: bool = False) -> list[int | None]:
        """Samples of a micro-batch of each rank; None: its local batch is computed as a whole.

        Args:
            places: Where each rank runs, by rank.
            is_elastic: Whether other ranks may come, so that a pattern may match none of these.

        Raises:
            ValueError: If there is none for one of them, or one is impossible.
            TypeError: If one is no whole number.
        """
        if self.micro_batch_size is None:
            return [None] * len(places)
        given = _by_rank("micro_batch_size", self.micro_batch_size, places, is_elastic)
        sizes = [given] * len(places) if isinstance(given, int) else given
        if len(sizes) != len(places) or min(sizes) < 1:
            raise ValueError(
                f"micro_batch_size={self.micro_batch_size} must be one number for all ranks or one "
                f"for each of the {len(places)} ranks, at least 1."
            )
        return list(sizes)


@dataclass(frozen=True)
class BatchSizeLimits:
    """Limits of local batch sizes, whatever ranks the job has.

    Attributes:
        min_batch_size: Fewest samples of a rank.
        max_batch_size: Most samples of a rank; None: no limit; "auto": as many as will be found.
        multiple_of: Local batch sizes are multiples of this.
        micro_batches: Local batch sizes are multiples of these too, if none may be partial.

    Example:
        >>> limits = BatchSizeLimits(1, {"a": 8, "Tesla T4*": 4}, 2)
        >>> limits.bounds([Place("a"), Place("b", "Tesla T4"), Place("a")]).maximum
        (8, 4, 8)
    """

    min_batch_size: BatchSizeBound
    max_batch_size: BatchSizeBound | Literal["auto"] | None
    multiple_of: int
    micro_batches: MicroBatches = MicroBatches()

    def bounds(self, places: Sequence[Place], *, is_elastic: bool = False) -> Bounds:
        """Those of ranks that run there.

        Args:
            places: Where each rank runs, by rank.
            is_elastic: Whether other ranks may come, so that a pattern may match none of these.

        Raises:
            ValueError: If there are none for one of them, or they are impossible.
            TypeError: If one is no whole number.
        """
        most: BatchSizeBound | None = None
        if not self.is_searched:
            most = cast(BatchSizeBound | None, self.max_batch_size)
        if self.is_searched and self.micro_batches.micro_batch_size is not None:
            raise ValueError(
                'max_batch_size="auto" was given with micro_batch_size, but the memory of a step '
                "in micro-batches does not depend on the local batch size. Leave out one of them."
            )
        bounds = Bounds.of(
            len(places),
            _by_rank("min_batch_size", self.min_batch_size, places, is_elastic),
            None if most is None else _by_rank("max_batch_size", most, places, is_elastic),
            self._multiples(places, is_elastic),
        )
        if min(bounds.minimum) < 1:
            raise ValueError(
                f"min_batch_size={self.min_batch_size} must be at least 1. "
                f"A rank that is to have no samples should not be part of the job."
            )
        return bounds

    @property
    def is_searched(self) -> bool:
        """Whether what fits into memory is to be found before training."""
        return isinstance(self.max_batch_size, str) and self.max_batch_size == "auto"

    def _multiples(self, places: Sequence[Place], is_elastic: bool) -> int | list[int]:
        multiple = whole_number("multiple_of", self.multiple_of)
        if multiple < 1 or self.micro_batches.allow_partial:
            return multiple
        sizes = self.micro_batches.sizes(places, is_elastic=is_elastic)
        multiples = [math.lcm(multiple, size or 1) for size in sizes]
        return multiples if len(set(multiples)) > 1 else multiples[0]


@dataclass(frozen=True)
class BalancerArguments:
    """What `Balancer` was given: see there. Checked where it is used, on all ranks."""

    global_batch_size: int
    strategy: str | Strategy
    every: str | int | None
    limits: BatchSizeLimits
    journal: str | os.PathLike[str] | None
    profile: str | os.PathLike[str] | None

    @property
    def identity(self) -> dict[str, str]:
        """What must be the same on all ranks, by name."""
        strategy: object = self.strategy
        if isinstance(strategy, Strategy):
            strategy = strategy.identity
        elif not isinstance(strategy, str):
            strategy = type(strategy)
        given = {
            "global_batch_size": self.global_batch_size,
            "strategy": strategy,
            "every": self.every,
            **{
                name: _in_full(bound)
                for name, bound in vars(self.limits).items()
                if name != "micro_batches"
            },
            **{name: _in_full(given) for name, given in vars(self.limits.micro_batches).items()},
            "whether there is a journal": self.journal is not None,  # Rank 0's path may differ.
            "whether there is a profile": self.profile is not None,
        }
        return {name: repr(value) for name, value in given.items()}

    def controller(self, bounds: Bounds) -> Controller:
        """A controller of these.

        Raises:
            ValueError: If an argument is impossible.
            TypeError: If one is of the wrong type.
        """
        return Controller(
            strategies.resolve(self.strategy, self.every),
            whole_number("global_batch_size", self.global_batch_size),
            bounds,
        )


def whole_number(name: str, value: Any) -> int:
    """The argument of this name.

    Raises:
        TypeError: If it is no whole number.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a whole number.")
    return whole


def whole_seed(value: Any) -> int:
    """`shuffle_seed` as Python's int, also where NumPy has drawn it.

    Raises:
        TypeError: If it is no whole number.
    """
    if np.ndim(value):
        raise TypeError(
            f"shuffle_seed is a {type(value).__name__} of shape {np.shape(value)}; expected a "
            f"whole number. Give inputs and labels as one source: "
            f"balancer.dataset((images, labels), shuffle_seed=7)."
        )
    return whole_number("shuffle_seed", value)


def _in_full(bound: object) -> object:
    """The same for bounds that mean the same: of an array all numbers, a dict's entries sorted.

    An array's repr leaves out the middle. A dict's order does not count (`values_by_rank`).
    """
    if isinstance(bound, np.ndarray):
        return bound.tolist()
    if isinstance(bound, Mapping):
        return dict(sorted(bound.items(), key=lambda entry: repr(entry[0])))
    return bound


def _by_rank(
    name: str, bound: BatchSizeBound, places: Sequence[Place], is_elastic: bool
) -> int | list[int]:
    if isinstance(bound, np.ndarray) and bound.ndim:
        bound = bound.tolist()
    if isinstance(bound, Mapping):
        whole = {key: whole_number(f"{name}[{key!r}]", value) for key, value in bound.items()}
        return values_by_rank(name, whole, places, may_be_unused=is_elastic)
    if isinstance(bound, Sequence) and not isinstance(bound, str):
        return [whole_number(f"{name}[{i}]", value) for i, value in enumerate(bound)]
    return whole_number(name, bound)
