"""All strategies on clusters that are drawn at random, so that none of them was tuned to these.

    python -m benchmarks.random_clusters --first-seed 30000 --count 200 [--strategies even dbs]

Each seed is a cluster of 2 to 24 ranks of up to six groups, with curves, speeds, noise and local
batch sizes of wide ranges, and what happens on it: pauses, neighbours, drifts, heat, added delays,
a network, and first steps that tune kernels. Printed are, for each strategy, the throughput over
the oracle's, and how often it is below the best of all strategies, and by how much.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from benchmarks.intervals import mean_and_half
from hvd_dbs.cli.simulate.workers import workers
from hvd_dbs.simulator import Scenario, simulate
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.disturbance import Disturbance
from hvd_dbs.simulator.disturbances import Pauses
from hvd_dbs.simulator.rank_groups import AffineRanks, RankGroup, SaturatingRanks, SawtoothRanks
from hvd_dbs.simulator.scenario import HostLoad, Noise
from hvd_dbs.simulator.simulation import preset, preset_names
from hvd_dbs.simulator.slowdowns import Drift, Neighbour, RandomNeighbours, Thermal

STRATEGIES = ("even", "dbs", "lb_bsp_cpu", "lb_bsp_gpu", "omnilearn", "cannikin", "adaptive")
BELOW = (0.01, 0.05)


@dataclass(frozen=True)
class Frame:
    """What all that is drawn of a cluster refers to.

    Attributes:
        random: Draws.
        size: Number of ranks.
        samples: Mean local batch size.
        sample_ms: What a sample takes on the fastest ranks.
        steps: Length of the run.
    """

    random: Generator
    size: int
    samples: int
    sample_ms: float
    steps: int

    def some_ranks(self) -> tuple[int, ...]:
        """Up to half of the ranks."""
        number = int(self.random.integers(1, max(2, self.size // 2 + 1)))
        return tuple(sorted(self.random.choice(self.size, number, replace=False).tolist()))

    def one_of(self, *values: float) -> float:
        return float(self.random.choice(values))

    def between(self, least: float, most: float) -> float:
        """Evenly distributed logarithms."""
        return float(np.exp(self.random.uniform(np.log(least), np.log(most))))

    def period(self, least: int) -> tuple[int, int]:
        """Of the run, at least so many steps; it may last to the end."""
        start = int(self.random.integers(10, self.steps // 2))
        return start, int(self.random.integers(start + least, self.steps + least))


def cluster_of(seed: int) -> Scenario:
    """The cluster of this seed."""
    random = np.random.default_rng(seed)
    size = int(random.choice([2, 3, 4, 6, 8, 12, 16, 24]))
    samples = int(random.choice([8, 16, 32, 64, 128]))
    frame = Frame(
        random, size, samples, np.exp(random.uniform(-3, 1.6)), int(random.choice([300, 600, 1200]))
    )
    unit = int(random.choice([1, 1, 1, 2, 4]))
    outliers = random.random() < 0.3
    return Scenario(
        name=f"random {seed}",
        global_batch_size=samples * size,
        ranks=_ranks(frame),
        steps=frame.steps,
        steps_per_epoch=int(random.choice([20, 50, 100])),
        multiple_of=unit,
        seed=seed,
        noise=Noise(
            jitter=frame.one_of(0.005, 0.02, 0.05, 0.1, 0.2),
            outlier_chance=frame.one_of(0.002, 0.01, 0.03, 0.1) if outliers else 0.0,
            outlier_factor=frame.between(1.5, 6),
        ),
        host_load=HostLoad() if random.random() < 0.7 else None,
        communication=_communication(frame),
        disturbances=_disturbances(frame),
        switch_ms=frame.one_of(1, 1, 1, 30, 300),
    )


def _ranks(frame: Frame) -> tuple[RankGroup, ...]:
    groups: list[RankGroup] = []
    left = frame.size
    while left:
        count = min(left, int(frame.random.integers(1, max(2, frame.size // 2 + 1))))
        left -= count
        slower = 1.0 if frame.random.random() < 0.35 else frame.between(1, 6)
        per_sample = slower * frame.sample_ms
        line: dict[str, Any] = {
            "count": count,
            "per_sample_ms": per_sample,
            "fixed_ms": per_sample * frame.samples * frame.one_of(0, 0.05, 0.2, 0.5, 1),
            "spread": frame.one_of(0, 0.02, 0.08),
            "forward_fraction": frame.random.uniform(0.1, 0.6),
            "forward_fixed_fraction": frame.random.uniform(0, 1),
        }
        kind = frame.random.choice(["affine", "affine", "saturating", "sawtooth"])
        if kind == "affine":
            groups.append(AffineRanks(**line))
        elif kind == "saturating":
            fewest = int(frame.random.integers(1, frame.samples))
            groups.append(SaturatingRanks(saturation=fewest, **line))
        else:
            tile, roughness = int(frame.one_of(4, 8, 16, 32)), frame.between(0.05, 0.4)
            most = 8 * frame.samples
            groups.append(
                SawtoothRanks(tile=tile, roughness=roughness, max_batch_size=most, **line)
            )
    return tuple(groups)


def _communication(frame: Frame) -> Communication:
    if frame.random.random() < 0.75:
        return Communication()
    return Communication(
        gradient_megabytes=frame.one_of(10, 100, 500),
        bandwidth_gbit=frame.one_of(1, 10, 100),
        latency_us=50,
    )


def _disturbances(frame: Frame) -> tuple[Disturbance, ...]:
    """Each kind on a fifth of the clusters."""
    step_ms = 2 * frame.sample_ms * frame.samples
    begin, end = frame.period(least=20)
    some = frame.some_ranks
    kinds: list[Disturbance] = [
        RandomNeighbours(
            ranks=some(),
            mean_quiet_steps=frame.between(20, 400),
            mean_busy_steps=frame.between(5, 200),
            least_slowdown=1.2,
            most_slowdown=frame.between(1.3, 4),
        ),
        Drift(ranks=some(), from_step=begin, to_step=end, slowdown=frame.between(0.4, 2.7)),
        Thermal(
            ranks=some(),
            from_step=begin,
            to_step=end + 40,
            slowdown=frame.between(1.1, 2.5),
            levels=int(frame.one_of(1, 2, 4)),
            steps_per_level=int(frame.one_of(3, 10)),
        ),
        Neighbour(
            ranks=some(),
            from_step=begin,
            to_step=None if frame.random.random() < 0.5 else end,
            slowdown=frame.between(1, 3),
            extra_ms=frame.one_of(0, 1) * step_ms * frame.between(0.1, 1),
        ),
        Pauses(
            ranks=some(),
            chance=frame.one_of(0.003, 0.02, 0.1, 0.4),
            pause_ms=step_ms * frame.between(0.5, 5),
        ),
    ]
    return tuple(kind for kind in kinds if frame.random.random() < 0.2)


def over_oracle(seed: int, strategies: Sequence[str]) -> list[float]:
    """Throughput of each strategy on the cluster of this seed over the oracle's; NaN: no cluster.

    A draw whose bounds no plan meets is none.
    """
    try:
        conditions = Conditions.of(cluster_of(seed))
    except ValueError:
        return [float("nan")] * len(strategies)
    runs = [simulate(conditions, preset(name, conditions)) for name in strategies]
    return [float(conditions.oracle_seconds.sum() / run.true_seconds.sum()) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=30000)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=preset_names())
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.count)
    with workers(given.jobs) as pool:
        rows = list(pool.map(over_oracle, seeds, [given.strategies] * len(seeds)))
    table = np.array(rows)
    table = table[np.isfinite(table).all(axis=1)]
    best = table.max(axis=1)
    print(f"{len(table)} clusters, seeds {seeds.start} to {seeds.stop - 1}\n")
    print("| strategy | over oracle | is the best | below it by over 0.01 | over 0.05 | at most |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, values in zip(given.strategies, table.T, strict=True):
        mean, half = mean_and_half(values)
        below = best - values
        parts = (float(np.mean(below > limit)) for limit in BELOW)
        shown = " | ".join(f"{part:.0%}" for part in (float(np.mean(below == 0)), *parts))
        print(f"| `{name}` | {mean:.3f} ±{half:.3f} | {shown} | {below.max():.3f} |")


if __name__ == "__main__":
    main()
