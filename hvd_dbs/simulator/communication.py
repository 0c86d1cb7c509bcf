"""How long the gradients are on their way, and how much of it the backward pass hides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.checks import require_fraction, require_not_negative, require_positive


@dataclass(frozen=True)
class Communication:
    """A ring allreduce in buckets, by latency and bandwidth.

    One bucket of s bytes takes `2 (n-1) latency + 2 (n-1)/n s / bandwidth`. The first bucket
    may start when every rank has done its forward pass and the part `gamma` of its backward
    pass. All buckets but the last overlap with the rest of the backward pass; the last one
    follows it. So with forward a_i(b), backward P_i(b), the overlappable time T_o and the last
    bucket's T_u a step takes `T_u + max_i max(a_i + P_i, a_i + gamma P_i + T_o)`.

    Attributes:
        gradient_megabytes: Bytes of all gradients, in 10^6; 0 is no communication at all.
        bucket_megabytes: Bytes of a bucket, in 10^6.
        bandwidth_gbit: Of the slowest link of the ring, in 10^9 bits a second.
        latency_us: Of one message, in microseconds.
        gamma: Part of the backward pass after which the first bucket is ready.

    References:
        Nie, Maghakian, Liu, "Cannikin", 2024, arXiv 2402.05302.
    """

    gradient_megabytes: float = 0.0
    bucket_megabytes: float = 25.0
    bandwidth_gbit: float = 10.0
    latency_us: float = 20.0
    gamma: float = 0.2

    def __post_init__(self) -> None:
        require_not_negative("gradient_megabytes", self.gradient_megabytes)
        require_positive("bucket_megabytes", self.bucket_megabytes)
        require_positive("bandwidth_gbit", self.bandwidth_gbit)
        require_not_negative("latency_us", self.latency_us)
        require_fraction("gamma", self.gamma)

    @property
    def is_split(self) -> bool:
        """Whether there is communication, and ranks know its parts and their first bucket."""
        return self.gradient_megabytes > 0

    def seconds(self, size: int) -> tuple[float, float]:
        """Overlappable seconds T_o and the last bucket's seconds T_u among `size` ranks."""
        if self.gradient_megabytes == 0 or size == 1:
            return 0.0, 0.0
        num_buckets = math.ceil(self.gradient_megabytes / self.bucket_megabytes)
        last = self.gradient_megabytes - (num_buckets - 1) * self.bucket_megabytes
        before_last = (num_buckets - 1) * self._bucket_seconds(self.bucket_megabytes, size)
        return before_last, self._bucket_seconds(last, size)

    def _bucket_seconds(self, megabytes: float, size: int) -> float:
        wire = 2 * (size - 1) / size * megabytes * 8e6 / (self.bandwidth_gbit * 1e9)
        return 2 * (size - 1) * self.latency_us * 1e-6 + wire


@dataclass(frozen=True)
class StepRule:
    """What a step takes, given when each rank is ready.

    Attributes:
        overlap_seconds: T_o, which starts when all ranks' first buckets are ready.
        last_seconds: T_u, which starts when all is ready and T_o is over.
    """

    overlap_seconds: float = 0.0
    last_seconds: float = 0.0

    def seconds(self, busy: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of steps.

        Args:
            busy: Seconds until a rank's gradients are ready, shape `[..., size]`.
            first: Seconds until its first bucket is ready, same shape.

        Returns:
            Shape `[...]`.
        """
        ready = busy.max(axis=-1)
        if self.overlap_seconds > 0:
            ready = np.maximum(ready, first.max(axis=-1) + self.overlap_seconds)
        return np.asarray(ready + self.last_seconds, dtype=np.float64)
