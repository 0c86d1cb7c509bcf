"""The scenario classes in which all presets are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.costs import Costs
from hvd_dbs.simulator.disturbances import FalseAlarms, Join, Leave, Pauses
from hvd_dbs.simulator.published import PUBLISHED
from hvd_dbs.simulator.rank_groups import AffineRanks, RankGroup, SaturatingRanks, SawtoothRanks
from hvd_dbs.simulator.scenario import HostLoad, Noise, Scenario
from hvd_dbs.simulator.slowdowns import Drift, EpochFaults, Neighbour, RandomNeighbours, Thermal

SAMPLES_PER_RANK = 32
"""Mean local batch size of all suite scenarios."""

SIZES = (4, 64, 1024, 16384)
"""Numbers of ranks of the whole suite."""

STEPS, STEPS_PER_EPOCH = 2000, 20
"""A run is long enough for the start, which a split fixed beforehand is spared, to be a small part
of it, as in a real job."""


DECISION_MS_PER_RANK = 0.0004
"""Added to a decision that is waited for: what rank 0 takes for the cheapest solver, in
milliseconds a rank (benchmarks/simulator.py)."""

BACKGROUND_MS, FIRST_STEP_MS = Costs.background_ms, Costs.switch_ms
"""What every scenario has, in milliseconds."""


def static_speeds(size: int) -> Scenario:
    """Three kinds of machines, unequal for good."""
    return _scenario("static speeds", size, ranks=_mixed(size))


def on_off_neighbours(size: int) -> Scenario:
    """Equal machines; other jobs come and go on an eighth of them."""
    busy = _some(size, 8)
    neighbours = RandomNeighbours(
        ranks=busy, mean_quiet_steps=120, mean_busy_steps=60, least_slowdown=1.5, most_slowdown=3
    )
    return _scenario("on/off neighbours", size, disturbances=(neighbours,))


def drift(size: int) -> Scenario:
    """An eighth of unequal machines becomes slower by degrees, another eighth faster."""
    some = _some(size, 4)
    slower, faster = some[::2], some[1::2] or some
    return _scenario(
        "drift",
        size,
        ranks=_mixed(size),
        disturbances=(
            Drift(ranks=slower, from_step=STEPS // 8, to_step=STEPS * 3 // 4, slowdown=2.5),
            Drift(ranks=faster, from_step=STEPS // 4, to_step=STEPS * 7 // 8, slowdown=0.6),
        ),
    )


def thermal_steps(size: int) -> Scenario:
    """A quarter of the devices gets hot, throttles in three levels, and cools again."""
    throttling = Thermal(
        ranks=_some(size, 4),
        from_step=STEPS // 4,
        to_step=STEPS * 3 // 4,
        slowdown=1.8,
        levels=3,
        steps_per_level=STEPS // 20,
    )
    return _scenario("thermal steps", size, disturbances=(throttling,))


def pauses(size: int) -> Scenario:
    """Unequal machines that stand still for a second now and then, which nobody can balance."""
    chance = 8 / (size * STEPS)
    steady = Pauses(chance=chance, pause_ms=1000)
    return _scenario("pauses", size, ranks=_mixed(size), disturbances=(steady,))


def leaves_and_joins(size: int) -> Scenario:
    """Unequal machines; an eighth leaves after a quarter, another eighth joins at half time."""
    some = _some(size, 8)
    return _scenario(
        "leaves and joins",
        size,
        ranks=_mixed(size),
        disturbances=(
            Leave(ranks=some, at_step=STEPS // 4),
            Join(ranks=tuple(rank - 1 for rank in some), at_step=STEPS // 2),
        ),
    )


def saw_tooth(size: int) -> Scenario:
    """Accelerators of four kinds, each with saw-teeth of its own."""
    kinds = ((0.4, 8), (0.6, 16), (0.9, 16), (1.6, 32))
    ranks = tuple(
        SawtoothRanks(
            count=size // 4,
            fixed_ms=3,
            per_sample_ms=per_sample_ms,
            tile=tile,
            roughness=0.4,
            spread=0.02,
            max_batch_size=160,
        )
        for per_sample_ms, tile in kinds
    )
    return _scenario("saw-tooth", size, ranks=ranks)


def network_overlap(size: int) -> Scenario:
    """Unequal accelerators; the backward pass hides most of the allreduce, or does not."""
    ranks = (
        AffineRanks(
            count=size // 2,
            fixed_ms=4,
            per_sample_ms=0.5,
            forward_fraction=0.2,
            forward_fixed_fraction=0.5,
            spread=0.05,
        ),
        SaturatingRanks(
            count=size // 4,
            fixed_ms=4,
            per_sample_ms=0.8,
            saturation=8,
            forward_fraction=0.5,
            spread=0.05,
        ),
        AffineRanks(
            count=size - size // 2 - size // 4,
            fixed_ms=6,
            per_sample_ms=1.6,
            forward_fraction=0.35,
            spread=0.05,
        ),
    )
    # The latency of a ring of thousands would drown the rest; large jobs use trees of rings.
    network = Communication(
        gradient_megabytes=100,
        bucket_megabytes=12.5,
        bandwidth_gbit=80,
        latency_us=20 / max(1.0, size / 64),
        gamma=0.15,
    )
    return _scenario("network overlap", size, ranks=ranks, communication=network)


def jitter_only(size: int) -> Scenario:
    """Equal machines with much noise: the best is to do nothing."""
    noise = Noise(jitter=0.08, outlier_chance=0.002)
    return _scenario("jitter only", size, noise=noise)


def noisy_steps(size: int) -> Scenario:
    """Unequal machines whose single steps differ by a fifth, as on cores that ranks share."""
    return _scenario("noisy steps", size, ranks=_mixed(size), noise=Noise(jitter=0.2))


def cpu_contention(size: int) -> Scenario:
    """Processors shared with other jobs, whose load shows before it hurts, and false alarms."""
    neighbours = RandomNeighbours(
        mean_quiet_steps=60, mean_busy_steps=25, least_slowdown=1.3, most_slowdown=2.5
    )
    return _scenario(
        "CPU contention",
        size,
        ranks=(AffineRanks(count=size, fixed_ms=2, per_sample_ms=3, spread=0.15),),
        noise=Noise(jitter=0.05),
        host_load=HostLoad(load_noise=0.04),
        disturbances=(neighbours, FalseAlarms(chance=0.003, mean_steps=8)),
    )


def dbs_paper(size: int) -> Scenario:
    """Unequal machines; now and then one loses a fixed time per step for a few epochs."""
    random = np.random.default_rng(size)
    delays = []
    for start in range(STEPS_PER_EPOCH, STEPS, STEPS_PER_EPOCH):
        if start == STEPS_PER_EPOCH or random.random() < 0.25:
            length = STEPS_PER_EPOCH * int(random.integers(4, 9))
            delays.append(
                Neighbour(
                    ranks=(int(random.integers(size)),),
                    from_step=start,
                    to_step=start + length,
                    extra_ms=float(random.uniform(10, 20)),
                    load=0.3,
                )
            )
    return _scenario("added delays", size, ranks=_mixed(size), disturbances=tuple(delays))


def dbs_faults(size: int) -> Scenario:
    """DBS's own fault generator on the ranks of `static`; no load announces or shows a fault.

    Ye et al., 2020 (arXiv 2007.11831): with chance 0.1 for each worker and epoch, it loses 5 to 10
    seconds an epoch for the next 4 to 20 epochs. An epoch has 0.4 s here, of which it loses a half.
    """
    faults = EpochFaults(steps_per_epoch=STEPS_PER_EPOCH, least_ms=5, most_ms=10)
    ranks = _mixed(size)
    return _scenario("faults of DBS", size, ranks=ranks, host_load=None, disturbances=(faults,))


def _published(make: Callable[[int], Scenario]) -> Callable[[int], Scenario]:
    """The class with the length, the epochs and the costs of the suite's."""
    return lambda size: replace(make(size), **_common(size))


SCENARIO_CLASSES: Mapping[str, Callable[[int], Scenario]] = MappingProxyType(
    {
        "static": static_speeds,
        "neighbours": on_off_neighbours,
        "drift": drift,
        "thermal": thermal_steps,
        "pauses": pauses,
        "membership": leaves_and_joins,
        "sawtooth": saw_tooth,
        "network": network_overlap,
        "jitter": jitter_only,
        "noisy": noisy_steps,
        "contention": cpu_contention,
        "delays": dbs_paper,
        "faults": dbs_faults,
        **{name: _published(make) for name, make in PUBLISHED.items()},
    }
)
"""Scenarios by class; each takes the number of ranks, from 4 on."""


def _scenario(name: str, size: int, **given: Any) -> Scenario:
    given.setdefault("ranks", (AffineRanks(count=size, fixed_ms=4, per_sample_ms=0.5),))
    total = SAMPLES_PER_RANK * size
    return Scenario(name=name, global_batch_size=total, seed=1, **_common(size), **given)


def _common(size: int) -> dict[str, Any]:
    solver_ms = DECISION_MS_PER_RANK * size
    return {
        "steps": STEPS,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "decision_ms": Costs.decision_ms + solver_ms,
        "decision_p90_ms": Costs.decision_p90_ms + solver_ms,
    }


def _mixed(size: int) -> tuple[RankGroup, ...]:
    """Half fast, a quarter at half the speed, a quarter at a quarter of it."""
    return (
        AffineRanks(count=size // 2, fixed_ms=4, per_sample_ms=0.4, spread=0.05),
        SaturatingRanks(count=size // 4, fixed_ms=4, per_sample_ms=0.8, saturation=8, spread=0.05),
        AffineRanks(count=size - size // 2 - size // 4, fixed_ms=6, per_sample_ms=1.6, spread=0.05),
    )


def _some(size: int, one_of: int) -> tuple[int, ...]:
    """Every `one_of`-th rank, at least one of a small job."""
    return tuple(range(min(one_of, size) - 1, size, one_of))
