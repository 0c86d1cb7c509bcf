"""Speed of the simulator, and time of one decision at 16,384 ranks.

    python benchmarks/simulator.py [--ranks 1024,4096,16384] [--repeats 5]

Goals: at least 10 million rank-steps a second from 1,024 ranks on for the cheap models, and at
most 10 ms for one decision at 16,384 ranks. Every figure is a median, with the least and the
most in brackets; the oracle's time is not part of the rank-steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hvd_dbs.balancing import Controller
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.simulation import preset, preset_names, simulate
from hvd_dbs.simulator.suite import SCENARIO_CLASSES

CHEAP = ("even", "static", "dbs")
CLASSES = ("static", "neighbours", "sawtooth", "network")
RANK_STEPS = 4_000_000
STEPS_A_ROUND = 5
ROUNDS = 31


def shown(values: list[float], digits: int = 1) -> str:
    """Median, least and most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:8.{digits}f} [{least:.{digits}f}, {most:.{digits}f}]"


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def print_rank_steps(sizes: list[int], repeats: int) -> None:
    print("Million rank-steps a second (goal: 10)")
    print(f"{'ranks':>6}  {'class':<11} {'preset':<7} {'median [least, most]':>22}")
    for size in sizes:
        for name in CLASSES:
            case = SCENARIO_CLASSES[name](size)
            steps = max(case.steps, RANK_STEPS // size)
            conditions = Conditions.of(replace(case, steps=steps, steps_per_epoch=50))
            for strategy_name in CHEAP:
                strategy = preset(strategy_name, conditions)
                speeds = [
                    steps * size / 1e6 / timed(lambda: simulate(conditions, strategy))  # noqa: B023
                    for _ in range(repeats)
                ]
                print(f"{size:6}  {name:<11} {strategy_name:<7} {shown(speeds):>22}")


def print_decisions(size: int) -> None:
    print(f"\nMilliseconds of one decision at {size} ranks (goal: 10), {ROUNDS - 1} decisions")
    print("observe: all ranks' models at once; in a job each rank does its own")
    print(f"{'preset':<11} {'class':<11} {'decide':>24} {'observe':>26}")
    for strategy_name in preset_names():
        for name in ("static", "contention", "sawtooth"):
            case = replace(SCENARIO_CLASSES[name](size), steps=STEPS_A_ROUND * ROUNDS)
            conditions = Conditions.of(case)
            strategy = preset(strategy_name, conditions)
            if strategy.every is None:
                continue
            controller = Controller(strategy, case.global_batch_size, case.bounds, num_rows=size)
            decide, observe = measure_decisions(conditions, controller)
            print(f"{strategy_name:<11} {name:<11} {shown(decide, 2):>24} {shown(observe, 2):>26}")


def measure_decisions(
    conditions: Conditions, controller: Controller
) -> tuple[list[float], list[float]]:
    """Milliseconds of each decision, and of folding the measurements in before it."""
    cluster, decide, observe = Cluster(conditions), [], []
    for stop in range(STEPS_A_ROUND, conditions.scenario.steps + 1, STEPS_A_ROUND):
        batch_sizes = np.asarray(controller.plan.batch_sizes)
        measurement = cluster.measure([cluster.play(batch_sizes, stop)])
        start = time.perf_counter()
        records = controller.observe(measurement)
        middle = time.perf_counter()
        controller.decide(records)
        decide.append(1000 * (time.perf_counter() - middle))
        observe.append(1000 * (middle - start))
    return decide[1:], observe[1:]  # The first one warms up.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1024,4096,16384")
    parser.add_argument("--decision-ranks", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print_rank_steps([int(size) for size in given.ranks.split(",")], given.repeats)
    print_decisions(given.decision_ranks)


if __name__ == "__main__":
    main()
