"""Which share of which core each rank gets. Pure: no clock, no process, no file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where ranks run and what a speed means in CPU time.

    Attributes:
        cores: Index of the core of each rank, in `range(num_cores)`.
        factor: A rank of speed v gets `factor * v` CPU seconds per second; at most 1.
    """

    cores: tuple[int, ...]
    factor: float

    def cpu_share(self, speed: float) -> float:
        """CPU seconds per second of a rank that runs at `speed`."""
        return self.factor * speed


def place(speeds: Sequence[float], num_cores: int) -> Placement:
    """Puts every rank on one core and scales all speeds together until they fit.

    With enough cores rank i has core i alone. Otherwise ranks are packed largest first onto the
    least loaded core, so the fullest core (which decides the factor) is close to the mean.

    Args:
        speeds: The highest speed that each rank has at any time of the run, shape `[size]`. It is
            the highest because a disturbance of one rank must not change the speed of another.
        num_cores: Cores that the job may use.

    Returns:
        The placement. On no core do the CPU shares add up to more than 1.

    Raises:
        ValueError: If a speed is not positive and finite, or there is no core.

    Example:
        >>> place([1, 1, 0.5, 0.25], num_cores=4)
        Placement(cores=(0, 1, 2, 3), factor=1.0)
        >>> place([1, 1, 0.5, 0.5], num_cores=2).cores
        (0, 1, 0, 1)
    """
    if num_cores < 1:
        raise ValueError(f"num_cores={num_cores}, expected at least 1.")
    for rank, speed in enumerate(speeds):
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError(f"Rank {rank} has speed {speed}, expected a positive, finite number.")

    cores = [0] * len(speeds)
    loads = [0.0] * num_cores
    if len(speeds) <= num_cores:
        cores = list(range(len(speeds)))
        for rank, speed in enumerate(speeds):
            loads[rank] = speed
    else:
        for rank in sorted(range(len(speeds)), key=lambda rank: (-speeds[rank], rank)):
            core = min(range(num_cores), key=lambda core: (loads[core], core))
            cores[rank] = core
            loads[core] += speeds[rank]
    fullest = max(loads)
    return Placement(tuple(cores), 1.0 if fullest <= 1 else 1 / fullest)
