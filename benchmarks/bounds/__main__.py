"""A cluster whose fast rank has the least memory: a bound, micro-batches, no bound; the ideal.

    scripts/bench.sh bounds              four ranks of 1, 0.25, 0.25 and 0.25 of a core
    scripts/bench.sh bounds --rounds 9

The memory of the fast rank holds its equal share of the global batch, and no more. Several ways to
train on such a cluster take turns, an epoch each, in one job; between rounds each rank's time curve
is measured. The simulator runs the same ways on these curves, where each further micro-batch of a
step costs what the curve has at zero samples.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bounds.ways import EVEN, SAMPLES_PER_RANK, WAYS, Way
from benchmarks.train import Request, Runner
from benchmarks.training import rank_curves
from benchmarks.training.clusters import Lengths
from benchmarks.training.figures import Summary, curves_of, without_epoch_starts
from hvd_dbs.cli.simulate.replay import mean_seconds
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.measured_curves import MeasuredCurve
from hvd_dbs.simulator.rank_groups import MeasuredRanks
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.simulation import preset, simulate


def scenario_of(way: Way, curves: NDArray[np.float64], fixed: NDArray[np.float64]) -> Scenario:
    """The job for the simulator.

    Args:
        way: The arguments of the balancer.
        curves: Seconds of a step as a whole at 0 to the global batch size, shape
            `[size, global_batch_size + 1]`.
        fixed: Seconds of each rank that a further micro-batch costs, shape `[size]`.
    """
    most = curves.shape[1] - 1
    samples = np.arange(1, most + 1)
    further = np.zeros(most)
    if way.micro_batch_size:
        further = -(-samples // way.micro_batch_size) - 1
    seconds = curves[:, 1:] + np.outer(fixed, further)
    return Scenario(
        name=way.name,
        global_batch_size=most,
        multiple_of=1 if way.allow_partial else way.micro_batch_size or 1,
        ranks=[
            MeasuredRanks(device=str(rank), max_batch_size=None if rank else way.bound)
            for rank in range(len(seconds))
        ],
        measured={(None, str(rank)): MeasuredCurve(1, row) for rank, row in enumerate(seconds)},
    )


def simulated_seconds(measured: Mapping[str, Any]) -> dict[str, float]:
    """The mean step of each way after its first quarter, on the curves of the job."""
    seconds = _median_seconds(measured)
    curves = curves_of(measured, seconds)
    points = np.array(measured["curve_points"])
    lines = [np.polyfit(x, y, 1) for x, y in zip(points, seconds, strict=True)]
    fixed = np.array([max(0.0, line[1]) for line in lines])
    found = {}
    for way in WAYS:
        conditions = Conditions.of(scenario_of(way, curves, fixed))
        run = simulate(conditions, preset(way.strategy, conditions))
        found[way.name] = mean_seconds(run, conditions.scenario.steps // 4)
    return found


def ideal_seconds(measured: Mapping[str, Any]) -> float:
    """The shortest step that the curves allow without a bound."""
    return rank_curves.ideal_seconds(curves_of(measured, _median_seconds(measured)))


def _median_seconds(measured: Mapping[str, Any]) -> NDArray[np.float64]:
    """Seconds at the points of the ranks' curves, shape `[size, points]`."""
    return np.asarray(np.median(measured["curve_seconds"]["calm"], axis=0))


def rows_of(measured: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the table."""
    steps = measured["lengths"]["steps"]
    live = {
        name: np.array([without_epoch_starts(times, steps).mean() for times in rounds])
        for name, rounds in measured["rounds"].items()
    }
    simulated = simulated_seconds(measured)
    for name, own in live.items():
        step, gain = Summary.of(1000 * own), Summary.of(live[EVEN.name] / own)
        yield (
            f"| {name} | {1000 * simulated[name]:.0f} | "
            f"{step.median:.0f} ({step.low:.0f} - {step.high:.0f}) | "
            f"{simulated[EVEN.name] / simulated[name]:.2f} | "
            f"{gain.median:.2f} ({gain.low:.2f} - {gain.high:.2f}) | "
            f"{', '.join(map(str, measured['plans'][name][-1]))} |"
        )
    ideal = ideal_seconds(measured)
    of_even = simulated[EVEN.name] / ideal
    yield f"| the ideal by the curves | {1000 * ideal:.0f} | | {of_even:.2f} | | |"


def main() -> None:
    """Runs the job, prints the table, keeps what was measured."""
    parser = argparse.ArgumentParser(
        prog="bench.sh bounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--rounds", type=int, default=7, help="in each every way trains an epoch")
    parser.add_argument("--steps", type=int, default=12, help="of an epoch")
    parser.add_argument("--timeout", type=float, default=1500.0, help="seconds of the job at most")
    parser.add_argument("--json", type=Path, default=Path("build/bounds.json"))
    options = parser.parse_args()
    lengths = Lengths(rounds=options.rounds, steps=options.steps, samples_per_rank=SAMPLES_PER_RANK)
    runner = Runner(lengths, options.timeout, verbose=False, module="benchmarks.bounds.job")
    strategies = tuple(dict.fromkeys(way.strategy for way in WAYS))
    measured = runner.run(Request("fast_rank", options.model, strategies))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(measured) + "\n")
    print("\n| | step, ms, simulated | live | times as fast as even, simulated | live | plan |")
    print("|---|---:|---:|---:|---:|---|")
    print("\n".join(rows_of(measured)))


if __name__ == "__main__":
    main()
