"""Scenario classes from published measurements, each with its source.

All are of accelerators that train ResNet-50 with 64 samples a rank: a V100 takes 0.2 s for a step.
The load of their hosts is not known. What lasts hours in the papers is cut to the 2,000 steps of
the suite, some seven minutes; which numbers are theirs stands in each class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise, Scenario
from hvd_dbs.simulator.slowdowns import RandomNeighbours, SlowNetwork

V100 = (18.4, 2.81)
"""Milliseconds of a step of ResNet-50, and of each sample of it. Within 0.6 % of what is reported
for 32, 64 and 128 samples: 108.8, 199.6 and 378.3 ms."""

P100 = (22.6, 4.44)
"""The same, within 0.3 % of 165.0, 306.2 and 591.1 ms."""

SAMPLES_PER_RANK = 64
"""Mean local batch size of these classes."""

STEADY = Noise(jitter=0.047)
"""The 90th percentile of a step is 1.06 of the mean, as of the slowdown from step to step in
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025
(arXiv 2505.05713): most stragglers are as slow in one step as in the next."""


def variation(size: int) -> Scenario:
    """Accelerators of one kind, no two of which are the same.

    Two differ by 8 % in the mean and by 22 % at most (three deviations), one in 64 takes 1.5 times
    as long: Sinha et al., "Not All GPUs Are Created Equal", SC 2022 (arXiv 2208.11035).
    """
    num_outliers = size // 64
    usual = _devices(size - num_outliers, spread=0.07)
    outliers = (_devices(num_outliers, slowdown=1.5),) if num_outliers else ()
    return _accelerators("variation", size, ranks=(usual, *outliers))


def slow_worker(size: int) -> Scenario:
    """One worker is three times slower for good: so in 1.7 % of the jobs of Lin et al., 2025."""
    ranks = (_devices(size - 1), _devices(1, slowdown=3))
    return _accelerators("slow worker", size, ranks=ranks)


def fail_slow(size: int) -> Scenario:
    """Devices that are slow for two minutes in the mean, by 1.2 to 2, on an eighth of the ranks.

    Wu et al., "Falcon", 2024 (arXiv 2410.12588): fail-slow periods of computing last from tens of
    seconds to hours. The slowdowns and how often they come are ours.
    """
    periods = RandomNeighbours(
        ranks=tuple(range(min(8, size) - 1, size, 8)),
        mean_quiet_steps=1200,
        mean_busy_steps=600,
        least_slowdown=1.2,
        most_slowdown=2.0,
    )
    return _accelerators("fail-slow devices", size, disturbances=(periods,))


def slow_network(size: int) -> Scenario:
    """A link that is four times slower, for two minutes and for one: fail-slow periods of the net.

    Wu et al., 2024, find these oftener than slow devices. No plan makes them shorter: what can be
    won is to leave the plan alone. A hundred megabytes of gradients on 25 Gbit/s.
    """
    network = Communication(
        gradient_megabytes=102, bandwidth_gbit=25, latency_us=20 / max(1.0, size / 64)
    )
    periods = (
        SlowNetwork(from_step=500, to_step=1100, slowdown=4),
        SlowNetwork(from_step=1500, to_step=1800, slowdown=4),
    )
    return _accelerators("fail-slow network", size, communication=network, disturbances=periods)


def collector(size: int) -> Scenario:
    """Equal ranks whose garbage collectors stop them at times: nothing must move because of them.

    3 % of the steps of a rank take two and a half times as long. Lin et al., 2025: collectors of
    Python run in other steps on each rank and delay some of them several times.
    """
    noise = Noise(jitter=STEADY.jitter, outlier_chance=0.03, outlier_factor=2.5)
    return _accelerators("garbage collectors", size, noise=noise)


def two_generations(size: int) -> Scenario:
    """Half V100, half P100, by their measured step times of ResNet-50."""
    half = size // 2
    ranks = (_devices(half), _devices(size - half, P100))
    return _accelerators("V100 and P100", size, ranks=ranks)


PUBLISHED: Mapping[str, Callable[[int], Scenario]] = MappingProxyType(
    {
        "variation": variation,
        "slow_worker": slow_worker,
        "fail_slow": fail_slow,
        "slow_network": slow_network,
        "collector": collector,
        "generations": two_generations,
    }
)
"""Scenarios by class; each takes the number of ranks, from 4 on."""


def _devices(
    count: int,
    milliseconds: tuple[float, float] = V100,
    slowdown: float = 1.0,
    spread: float = 0.0,
) -> AffineRanks:
    fixed_ms, per_sample_ms = (slowdown * value for value in milliseconds)
    return AffineRanks(count=count, fixed_ms=fixed_ms, per_sample_ms=per_sample_ms, spread=spread)


def _accelerators(name: str, size: int, **given: Any) -> Scenario:
    given.setdefault("ranks", (_devices(size),))
    given.setdefault("noise", STEADY)
    return Scenario(
        name=name, global_batch_size=SAMPLES_PER_RANK * size, host_load=None, seed=1, **given
    )
