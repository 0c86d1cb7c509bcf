"""OmniLearn, Cannikin and DBS in the simulator, where their hardware is out of reach.

    scripts/bench.sh papers ratios              about a minute

OmniLearn: workers with core counts up to 1:10; what the cluster was besides is not known. Cannikin:
random clusters by the paper's own formula of a step (32 and more accelerators of three kinds are
out of reach); its headline includes a global batch size that adapts, which is not part of this
package, so the figures here are those of balancing alone. DBS: speeds 1/3, 1/3, 1/3, 1, as `dbs`
measures live, for many more epochs, with and without its fault generator.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.papers import faults
from benchmarks.papers.rows import Row, report, spread_of
from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.curves import AffineCurves, OverlapCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.simulator import Conditions, Scenario, simulate
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import HostLoad
from hvd_dbs.simulator.simulation import preset
from hvd_dbs.simulator.slowdowns import Neighbour

CORES: Mapping[str, tuple[int, ...]] = {
    "1 and 10 cores": (1, 10),
    "1, 4, 7, 10 cores": (1, 4, 7, 10),
    "1, 1, 1, 10 cores": (1, 1, 1, 10),
    "1, 10, 10, 10 cores": (1, 10, 10, 10),
}
_CORE_MS = 20.0
"""A core's time for a sample: steps of seconds, as with ResNet on few cores."""
_FIXED_MS = 20.0
"""What a step takes without samples."""
_SAMPLES = 64
"""Of the global batch for each rank."""
_DBS_EPOCHS, _DBS_STEPS = 100, 12
_INSTANCES = 300


def seconds_of(scenario: Scenario, names: Sequence[str]) -> dict[str, float]:
    """Seconds of all steps, changes of plan included, by strategy."""
    conditions = Conditions.of(scenario)
    return {
        name: float(simulate(conditions, preset(name, conditions)).clock_seconds.sum())
        for name in names
    }


def omnilearn_rows(seeds: Sequence[int]) -> list[Row]:
    """How many times faster than an even split."""
    rows = []
    for name, cores in CORES.items():
        ratios = []
        for seed in seeds:
            scenario = Scenario(
                name=name,
                global_batch_size=_SAMPLES * len(cores),
                ranks=[AffineRanks(fixed_ms=_FIXED_MS, per_sample_ms=_CORE_MS / n) for n in cores],
                steps=500,
                steps_per_epoch=25,
                seed=seed,
            )
            seconds = seconds_of(scenario, ("even", "omnilearn"))
            ratios.append(seconds["even"] / seconds["omnilearn"])
        here, spread = spread_of(ratios, ".2f", "seeds")
        what = "`omnilearn`: times as fast as even"
        rows.append(Row(what, "2 to 4.5", here, spread, f"simulated, {name}"))
    return rows


def dbs_rows(seeds: Sequence[int]) -> list[Row]:
    """Time less than an even split's."""
    rows = []
    for with_faults in (False, True):
        saved: dict[str, list[float]] = {"dbs": [], "adaptive": []}
        for seed in seeds:
            seconds = seconds_of(dbs_scenario(seed, with_faults), ("even", *saved))
            for name, entries in saved.items():
                entries.append(1 - seconds[name] / seconds["even"])
        for name, entries in saved.items():
            here, spread = spread_of(entries, ".1%", "seeds")
            published = "up to 35 %; by hand 33 %" if name == "dbs" else "-"
            cluster = "simulated, 1/3, 1/3, 1/3, 1, B = 512" + ", faults" * with_faults
            rows.append(Row(f"`{name}`: time less than even's", published, here, spread, cluster))
    return rows


def dbs_scenario(seed: int, with_faults: bool) -> Scenario:
    """The cluster of DBS, quiet or with the faults of its experiments."""
    ranks = [
        AffineRanks(count=3, fixed_ms=10, per_sample_ms=3.0),
        AffineRanks(count=1, fixed_ms=10, per_sample_ms=1.0),
    ]
    even_step_ms = 10 + 128 * 3.0
    disturbances = []
    if with_faults:
        lost = faults.schedule(_DBS_EPOCHS, 4, seed)
        for epoch, worker in np.argwhere(lost > 0).tolist():
            disturbances.append(
                Neighbour(
                    ranks=(worker,),
                    from_step=epoch * _DBS_STEPS,
                    to_step=(epoch + 1) * _DBS_STEPS,
                    extra_ms=float(lost[epoch, worker]) * even_step_ms,
                    load=0.0,
                    memory=0.0,
                )
            )
    return Scenario(
        name="DBS",
        global_batch_size=512,
        ranks=ranks,
        steps=_DBS_EPOCHS * _DBS_STEPS,
        steps_per_epoch=_DBS_STEPS,
        seed=seed,
        host_load=HostLoad(),
        disturbances=disturbances,
    )


def cannikin_rows(seed: int) -> list[Row]:
    """Exactly, without noise: the paper's optimum against two other splits."""
    random = np.random.default_rng(seed)
    of_even, of_compute = [], []
    for _ in range(_INSTANCES):
        size = int(random.integers(4, 17))
        compute, exposed = _instance(random, size)
        together = OverlapCurves(compute, exposed)
        bounds = Bounds.of(size, 1)
        total = _SAMPLES * size
        even = Plan.proportional(total, [1.0] * size, bounds)
        problem = Problem(total, bounds, even)
        best = _longest(together, EqualFinish().solve({}, problem, together)[0].plan)
        equal = _longest(together, EqualFinish().solve({}, problem, compute)[0].plan)
        of_even.append(1 - best / _longest(together, even))
        of_compute.append(1 - best / equal)
    rows = []
    cluster = "the paper's formula, 4 to 16 random ranks"
    for what, published, values in (
        ("even (DDP)", "up to 85 %, with an adapted batch size", of_even),
        ("equalised computing", "up to 52 %, with an adapted batch size", of_compute),
    ):
        here, spread = spread_of(values, ".1%", f"instances; most {max(values):.1%}")
        rows.append(
            Row(f"Cannikin's optimum: step less than {what}", published, here, spread, cluster)
        )
    return rows


def _instance(random: np.random.Generator, size: int) -> tuple[AffineCurves, AffineCurves]:
    """Forward q b + s, backward k b + m, first bucket after gamma of it, communication to hide."""
    q, k = random.uniform(0.5, 4.0, (2, size)) * 1e-3
    s, m = random.uniform(0.0, 10.0, (2, size)) * 1e-3
    gamma, overlap = random.uniform(0.1, 0.5), random.uniform(0.0, 0.2)
    exposed = AffineCurves(s + gamma * m + overlap, q + gamma * k)
    return AffineCurves(s + m, q + k), exposed


def _longest(curves: OverlapCurves, plan: Plan) -> float:
    return float(curves.seconds(plan.samples).max())


def main() -> None:
    """Prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path, default=Path("build/papers/ratios.json"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = [*omnilearn_rows(seeds), *cannikin_rows(options.first_seed), *dbs_rows(seeds)]
    report("OmniLearn, Cannikin and DBS, simulated", rows, options.json)


if __name__ == "__main__":
    main()
