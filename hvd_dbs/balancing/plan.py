"""Who processes how many samples in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.apportionment import apportion_within
from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.multiples import apportion_multiples

DECISION_SECONDS = 0.001
"""What a decision is taken to cost all ranks until that has been measured."""

FIRST_ROUND_STEPS = 3
"""Steps of the first round where decisions say when the next one is due: the first step of a
training is not measured, and of two others the shorter one was not held up."""


@dataclass(frozen=True)
class Plan:
    """The local batch sizes of all ranks.

    Attributes:
        batch_sizes: Samples by rank in a full step, shape `[size]`.

    Example:
        >>> plan = Plan((64, 128))
        >>> plan.global_batch_size, plan.shares
        (192, (0.3333333333333333, 0.6666666666666666))
    """

    batch_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise ValueError("A plan needs at least one rank.")
        if self.samples.min() < 0:
            rank = next(rank for rank, samples in enumerate(self.batch_sizes) if samples < 0)
            raise ValueError(
                f"batch_size={self.batch_sizes[rank]} of rank {rank} must not be negative."
            )
        if self.global_batch_size == 0:
            raise ValueError("A plan needs at least one sample a step.")

    @classmethod
    def of(cls, batch_sizes: NDArray[np.int64]) -> Plan:
        """The plan with these batch sizes, shape `[size]`.

        For thousands of ranks: a tuple takes long to become the array `samples`.
        """
        plan = object.__new__(cls)
        vars(plan).update(batch_sizes=tuple(batch_sizes.tolist()), samples=_locked(batch_sizes))
        plan.__post_init__()
        return plan

    @classmethod
    def proportional(
        cls, global_batch_size: int, shares: Sequence[float] | NDArray[np.float64], bounds: Bounds
    ) -> Plan:
        """The plan within `bounds` that is nearest to `shares`, shape `[size]`.

        Raises:
            ValueError: If no plan within the bounds has that sum.
        """
        if bounds.multiples is not None:
            return cls(apportion_multiples(global_batch_size, shares, bounds))
        return cls.of(apportion_within(global_batch_size, shares, bounds))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.batch_sizes)

    @cached_property
    def global_batch_size(self) -> int:
        """Samples that all ranks process in a full step."""
        return sum(self.batch_sizes)

    @cached_property
    def samples(self) -> NDArray[np.float64]:
        """The batch sizes as an array that cannot be written to, shape `[size]`."""
        return _locked(self.batch_sizes)

    @property
    def shares(self) -> tuple[float, ...]:
        """Each rank's part of the global batch."""
        return tuple(batch_size / self.global_batch_size for batch_size in self.batch_sizes)

    def __str__(self) -> str:
        """The batch sizes; the largest plans are cut in the middle."""
        sizes = [str(batch_size) for batch_size in self.batch_sizes]
        if len(sizes) > 16:
            sizes = [*sizes[:8], "...", *sizes[-4:]]
        return f"[{', '.join(sizes)}]"


def _locked(batch_sizes: tuple[int, ...] | NDArray[np.int64]) -> NDArray[np.float64]:
    samples = np.array(batch_sizes, dtype=np.float64)
    samples.flags.writeable = False
    return samples


@dataclass(frozen=True)
class Problem:
    """What a solver has to respect: the sum, the bounds, and where it starts from.

    Attributes:
        global_batch_size: The sum of every plan.
        bounds: Allowed local batch sizes.
        current: The plan in force.
        decision_seconds: What a decision costs all ranks, positive.
    """

    global_batch_size: int
    bounds: Bounds
    current: Plan
    decision_seconds: float = DECISION_SECONDS

    def apportion(self, shares: Sequence[float] | NDArray[np.float64]) -> Plan:
        """The plan within the bounds that is nearest to `shares`, shape `[size]`."""
        return Plan.proportional(self.global_batch_size, shares, self.bounds)

    def in_multiples(self, plan: Plan, curves: TimeCurves) -> Plan:
        """The plan, where ranks have multiples of their own the nearest one that has them.

        Solvers count in the smallest of the multiples. Where the nearest plan is not faster than
        the one in force, it is the one in force.

        Args:
            plan: What a solver has found.
            curves: Seconds by rank.
        """
        if self.bounds.multiples is None or self.bounds.allow(plan.samples):
            return plan
        nearest = self.apportion(plan.samples)
        before, after = (
            float(np.max(curves.seconds(one.samples))) for one in (self.current, nearest)
        )
        return nearest if after < before else self.current


@dataclass(frozen=True)
class Decision:
    """A new plan or "keep", and why.

    Attributes:
        plan: The plan from now on.
        changed: Whether it differs from the plan before.
        reason: What was seen and what is expected, one line.
        predicted_seconds: Predicted step time of the plan before and of this one; NaN if unknown.
        warning: Whether something is wrong that the user should know of.
        steps_to_next: Steps until the next decision, where the strategy's cadence is "automatic";
            None where it is fixed.
    """

    plan: Plan
    changed: bool
    reason: str
    predicted_seconds: tuple[float, float] = (float("nan"), float("nan"))
    warning: bool = False
    steps_to_next: int | None = None
