"""How the learning rate follows the global batch size: Dynamic Mini-batch SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

RAMP_ITERATIONS = 8
"""The published T."""

RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt}
"""By what the learning rate is multiplied in the end, given by what the global batch is."""


@dataclass(frozen=True)
class Ramp:
    """The way of a learning-rate multiplier from `start` to `target`.

    With k = `target` / `start` and T = `ramp_iterations`, iteration i after the change has

        start * (1 + i (k - 1) / (T k))   for 0 <= i < T k,   then   target.

    Scaled at once by k, a learning rate meets a momentum buffer that holds the noise of the old
    batch size for many steps. So k = 2 takes 16 iterations, k = 16 takes 128, k = 1/2 takes 4. An
    iteration is an update of the weights.

    The paper says nothing of what follows, so it is ours:

    - A change during a ramp starts another one from the multiplier of the last iteration; its k is
      from there to the new target.
    - k below 1/T: the formula as it is, so one iteration has the old multiplier and the next one
      the target.
    - Optimizers of the Adam family divide by the size of the gradients, so their noise does not go
      down with the batch as it does in SGD: the "sqrt" rule multiplies by the square root of the
      batches' ratio, and k above is that root.

    Attributes:
        start: Multiplier at the change.
        target: Multiplier from iteration T k on.
        ramp_iterations: T, in iterations; 0 scales at once.

    Example:
        >>> ramp = Ramp(start=1.0, target=2.0)
        >>> [ramp.multiplier(i) for i in (0, 4, 8, 16, 1000)]
        [1.0, 1.25, 1.5, 2.0, 2.0]

    References:
        Lin et al., "Dynamic Mini-batch SGD for Elastic Distributed Training: Learning in the Limbo
        of Resources", 2019, arXiv 1904.12043.
    """

    start: float = 1.0
    target: float = 1.0
    ramp_iterations: int = RAMP_ITERATIONS

    def __post_init__(self) -> None:
        for name in ("start", "target"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{name}={value!r} of a ramp must be a positive number.")
        if not isinstance(self.ramp_iterations, int) or self.ramp_iterations < 0:
            raise ValueError(
                f"ramp_iterations={self.ramp_iterations!r} must be a whole number, 0 or more."
            )

    @property
    def length(self) -> float:
        """T k: from this iteration on the multiplier is the target."""
        return self.ramp_iterations * self.target / self.start

    def multiplier(self, iteration: int) -> float:
        """The multiplier of the iteration that follows `iteration` others since the change."""
        if iteration >= self.length:
            return self.target
        value = self.start + (self.target - self.start) * iteration / self.length
        low, high = sorted((self.start, self.target))
        return min(max(value, low), high)  # Rounding does not lead beyond the end.

    def reached(self, num_iterations: int) -> float:
        """The multiplier of the last of `num_iterations` iterations since the change."""
        return self.start if num_iterations == 0 else self.multiplier(num_iterations - 1)


@dataclass(frozen=True)
class RampState:
    """Where the learning rate stands on its way, as plain data.

    A rate that falls is set at once, unless `ramps_down`: the published ramp keeps the large rate
    for T k iterations of small, noisy batches, while the buffer that it spares has the noise of
    large ones. On a noisy quadratic and on digits that raised the loss (docs/changing_batches.md).

    Attributes:
        base_batch_size: Global batch size that the optimizer's own learning rate is meant for.
        rule: "linear" or "sqrt", of `RULES`.
        ramp: The ramp under way, or the last one.
        num_iterations: Iterations since it began.
        ramp_iterations: T of the ramps to come.
        ramps_down: Whether a rate that falls has a ramp too, as published.

    Example:
        >>> state = RampState(base_batch_size=64).resized(128, num_iterations=10)
        >>> state.ramp.start, state.ramp.target, state.num_iterations
        (1.0, 2.0, 0)
    """

    base_batch_size: int
    rule: str = "linear"
    ramp: Ramp = Ramp()
    num_iterations: int = 0
    ramp_iterations: int = RAMP_ITERATIONS
    ramps_down: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.ramps_down, bool):
            raise ValueError(f"ramps_down={self.ramps_down!r} must be True or False.")
        Ramp(ramp_iterations=self.ramp_iterations)
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r} is unknown. Known: {', '.join(sorted(RULES))}.")
        for name, least in (("base_batch_size", 1), ("num_iterations", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number, {least} or more.")

    def resized(self, global_batch_size: int, num_iterations: int) -> RampState:
        """The state when the global batch size becomes another after so many iterations.

        The target depends on the base batch size alone, so that a way through several sizes ends
        where the straight way would.
        """
        target = RULES[self.rule](global_batch_size / self.base_batch_size)
        if target == self.ramp.target:
            return replace(self, num_iterations=num_iterations)
        reached = self.ramp.reached(num_iterations)
        is_ramp = self.ramps_down or target > reached
        ramp = Ramp(reached, target, self.ramp_iterations if is_ramp else 0)
        return replace(self, ramp=ramp, num_iterations=0)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RampState:
        """The state that `state_dict` was called on.

        Raises:
            ValueError: If a value is impossible.
            TypeError: If a name is missing or unknown.
        """
        return cls(**{**state, "ramp": Ramp(**state["ramp"])})
