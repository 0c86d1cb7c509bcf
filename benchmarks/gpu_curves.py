"""Cold starts on saw-toothed curves: how far from the optimum each strategy ends, and at what cost.

    python -m benchmarks.gpu_curves --curves FILE.csv    # device,batch_size,milliseconds
    python -m benchmarks.gpu_curves                      # curves of its own

`curves/h200_encoder.csv` has the steps of twelve encoder layers of BERT-base (128 vectors a sample,
bfloat16) on an NVIDIA H200. `curves/h100_resnet50.csv` has those of ResNet-50 on an H100, in
float32 (with TF32) and in bfloat16, with `TF_CUDNN_USE_AUTOTUNE=0`, and
`curves/h100_encoder_mixer.csv` those of the encoder layers and of MLP-Mixer (float32 with TF32).
All are of the models and the loop of `scripts/gpu_check/curves.py`. With `--slower 1 1.5 2 3` each
device of a file is there four times, the others so much slower.

Each case is a set of devices and a global batch size. A job starts with the even split, each step
is noisy, a decision falls every few steps. Reported is the step time by the true curves after the
last decision, over the best possible one, which the exact solver knows.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.table_curves import TableCurves
from hvd_dbs.balancing import Bounds, Controller, Measurement, Plan, Strategy, strategies
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.equal_finish import equal_finish

CURVES_VARIABLE = "HVD_DBS_GPU_CURVES"
STILL = 15
"""A run whose plan changes in its last decisions, so many, is counted as not at rest."""


@dataclass(frozen=True)
class Case:
    """Devices that train together; `table` holds seconds at 0, 1, ... samples, NaN: unknown."""

    name: str
    table: NDArray[np.float64]
    global_batch_size: int

    @property
    def bounds(self) -> Bounds:
        known = np.isfinite(self.table)
        least = np.maximum(np.argmax(known, axis=1), 1)
        most = known.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
        return Bounds.of(len(self.table), least.tolist(), most.tolist())

    def best_seconds(self) -> float:
        """The shortest step that any plan allows."""
        even = [1.0] * len(self.table)
        start = Plan.proportional(self.global_batch_size, even, self.bounds)
        problem = Problem(self.global_batch_size, self.bounds, start)
        curves = TableCurves(self.table)
        return float(curves.seconds(equal_finish(problem, curves).samples).max())


@dataclass(frozen=True)
class Setting:
    """How a run is measured and how long it lasts."""

    noise: float = 0.03
    steps: int = 5
    decisions: int = 60


@dataclass(frozen=True)
class Run:
    """`over`: relative excess over the optimum before each decision and after the last one."""

    over: NDArray[np.float64]
    num_late_changes: int
    num_changes: int


def read_curves(path: Path) -> dict[str, dict[int, float]]:
    """Seconds by device and batch size."""
    curves: dict[str, dict[int, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            seconds = float(row["milliseconds"]) / 1000
            curves.setdefault(row["device"], {})[int(row["batch_size"])] = seconds
    return curves


def slower(
    curves: dict[str, dict[int, float]], factors: Iterable[float]
) -> dict[str, dict[int, float]]:
    """Each device once for each factor, by which its steps are longer."""
    return {
        f"{device} x {factor}": {size: factor * seconds for size, seconds in points.items()}
        for device, points in curves.items()
        for factor in factors
    }


def device_cases(curves: dict[str, dict[int, float]], batches: Iterable[int]) -> list[Case]:
    """Each subset of two or more devices with each global batch that its curves cover."""
    most = max(max(points) for points in curves.values())
    table = np.full((len(curves), most + 1), np.nan)
    for row, points in enumerate(curves.values()):
        table[row, list(points)] = list(points.values())
    cases = []
    for size in range(2, len(curves) + 1):
        for devices in itertools.combinations(range(len(curves)), size):
            for batch in batches:
                case = Case(f"{devices} B={batch}", table[list(devices)], batch)
                try:
                    case.bounds.check(batch)
                except ValueError:
                    continue
                cases.append(case)
    return cases


def generated_case(kind: str, seed: int, num_ranks: int | None = None) -> Case:
    """A cluster of devices with curves of one kind: "sawtooth", "affine" or "saturating".

    Saw-teeth come from work that is done in tiles (part of the time goes up in steps), from other
    kernels being picked beyond some batch size (jumps up or down), and from round batch sizes
    that happen to be fast.
    """
    rng = np.random.default_rng([seed, len(kind)])
    size = num_ranks or int(rng.integers(2, 17))
    mean = int(rng.integers(12, 97))
    samples = np.arange(min(mean * size, 4 * mean + 64) + 1.0)
    work, factor = samples, np.ones_like(samples)
    rows = []
    for rank in range(size):
        if kind == "sawtooth" and (rank == 0 or rng.random() < 0.5):
            tile, part = rng.choice([8, 16, 24, 32, 48, 64]), rng.uniform(0, 0.8)
            work = (1 - part) * samples + part * np.ceil(samples / tile) * tile
            factor = np.ones_like(samples)
            for _ in range(rng.integers(0, 5)):
                factor[int(rng.choice(np.arange(8, len(samples), 4))) + 1 :] *= rng.uniform(
                    0.93, 1.2
                )
            for _ in range(rng.integers(0, 3)):
                factor[int(rng.choice(np.arange(8, len(samples), 8)))] *= rng.uniform(0.8, 1.0)
        pace = 1e-3 * (float(rng.choice([1, 1, 2, 3])) if rng.random() < 0.5 else rng.uniform(1, 6))
        fixed = pace * rng.uniform(0, 40)
        if kind == "saturating":
            work = np.maximum(samples, rng.uniform(4, 1.2 * mean)) + 0.1 * samples
        rows.append((fixed + pace * work) * factor)
    return Case(f"{kind} {seed}", np.array(rows), mean * size)


def cold_run(case: Case, strategy: Strategy, setting: Setting, seed: int) -> Run:
    """Trains from the even split, deciding every few steps."""
    rng = np.random.default_rng(seed)
    size = len(case.table)
    controller = Controller(strategy, case.global_batch_size, case.bounds, num_rows=size)
    curves, best, over, plans = TableCurves(case.table), case.best_seconds(), [], []
    for _ in range(setting.decisions):
        samples = controller.plan.samples
        seconds = curves.seconds(samples)
        noise = 1 + setting.noise * rng.standard_normal((setting.steps, size))
        measurement = Measurement.of(
            samples, seconds * noise.clip(0.2).mean(axis=0), num_steps=np.full(size, setting.steps)
        )
        over.append(seconds.max() / best - 1)
        controller.decide(controller.observe(measurement))
        plans.append(controller.plan)
    over.append(curves.seconds(controller.plan.samples).max() / best - 1)
    changed = [a != b for a, b in itertools.pairwise(plans)]
    return Run(np.array(over), sum(changed[-STILL:]), sum(changed))


def table_line(name: str, runs: Sequence[Run]) -> str:
    final = 100 * np.array([run.over[-1] for run in runs])
    restless = 100 * np.mean([run.num_late_changes > 0 for run in runs])
    lost = np.mean([run.over[:-1].sum() for run in runs])
    changes = np.mean([run.num_changes for run in runs])
    columns = [np.median(final), *np.percentile(final, [90, 95]), final.max()]
    shown = " | ".join(f"{value:6.2f}" for value in columns)
    return (
        f"| {name:10s} | {shown} | {100 * np.mean(final <= 3):5.1f} | {restless:5.1f} "
        f"| {changes:5.1f} | {lost:5.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--curves",
        type=Path,
        default=os.environ.get(CURVES_VARIABLE),
        help=f"CSV file with device,batch_size,milliseconds; default: ${CURVES_VARIABLE}",
    )
    parser.add_argument(
        "--slower",
        type=float,
        nargs="+",
        default=[1.0],
        help="times slower that each device is there, too",
    )
    parser.add_argument("--strategies", default="adaptive,dbs,lb_bsp_gpu,omnilearn,cannikin")
    parser.add_argument("--noise", type=float, default=0.03, help="deviation of a step's time")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each case")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=60, help="generated cases of each kind")
    arguments = parser.parse_args()
    groups: dict[str, list[Case]] = {}
    if arguments.curves:
        groups["measured"] = device_cases(
            slower(read_curves(arguments.curves), arguments.slower), range(64, 385, 16)
        )
    else:
        for kind in ("sawtooth", "affine", "saturating"):
            groups[kind] = [generated_case(kind, seed) for seed in range(arguments.cases)]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    setting = Setting(noise=arguments.noise)
    for group, cases in groups.items():
        print(f"\n{group}: {len(cases)} cases, seeds {list(seeds)}, {setting}")
        print("step time over the optimum after the last decision, %; runs at most 3 % over it, %;")
        print(f"runs with a change in the last {STILL} decisions, %; changes; steps' worth lost")
        print("| strategy   | median |    p90 |    p95 |    max |  <=3% | moves | chgs. |  lost |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name in arguments.strategies.split(","):
            runs = [
                cold_run(case, strategies.resolve(name), setting, seed=1000 * seed + number)
                for number, case in enumerate(cases)
                for seed in seeds
            ]
            print(table_line(name, runs), flush=True)


if __name__ == "__main__":
    main()
