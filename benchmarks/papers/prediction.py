"""LB-BSP's forecast on recorded loads: NARX against others, at the horizon that a plan has.

    scripts/bench.sh papers record_loads       first, on the host in question
    scripts/bench.sh papers prediction         about a minute
    scripts/bench.sh papers prediction --simulated announced --seed 7     on simulated loads instead

After each step every forecast is asked for the speed so many steps later. A plan that is decided
after a step holds three steps later in a job whose data are ready in time, not one. All but the
recurrent networks learn while they go; these learn from the first half. The second half counts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.record_loads import Step, read
from benchmarks.papers.rows import Row, report, spread_of
from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.time_models.ewma import Ewma
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.narx import Narx
from hvd_dbs.balancing.time_models.narx_or_last import HORIZON, NarxOrLast
from hvd_dbs.balancing.time_models.time_model import TimeModel
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.prediction import PREDICTION_CASES

Forecasts = Mapping[str, NDArray[np.float64]]
"""At k what is foretold after step k, shape `[steps]`, by name."""

PRESET = "NARX or last (the preset)"

_LEAST_STEPS = 200
_BATCH_SIZE = 100.0
"""Samples that a step stands for; they cancel out."""
_ORDER = 2
_BUFFER = 200
"""Steps that the autoregression is fitted to."""
_BLOCKS = 8
"""Parts of the second half, one error each, for the spread."""


def by_model(model: TimeModel, steps: list[Step]) -> NDArray[np.float64]:
    """What a time model of the package foretells, asked as rank 0 asks it."""
    state, foretold = model.init(1), []
    with np.errstate(all="ignore"):
        for step in steps:
            seen = Measurement.of(
                [_BATCH_SIZE],
                [step.seconds],
                cpu_load=[step.cpu_load],
                memory_load=[step.memory_load],
            )
            state = model.update(state, seen)
            seconds = model.curves(model.record(state)).seconds(np.array([_BATCH_SIZE]))
            foretold.append(float(1.0 / seconds[0]))
    return np.array(foretold)


def by_autoregression(speeds: NDArray[np.float64], horizon: int) -> NDArray[np.float64]:
    """v(k + h) from v(k), v(k - 1), by least squares over the last steps at this horizon."""
    foretold = speeds.copy()
    rows = np.column_stack([speeds[1:], speeds[:-1], np.ones(len(speeds) - 1)])  # From step 1 on.
    for k in range(10 * _ORDER, len(speeds)):
        begin, end = max(0, k - _BUFFER), k - horizon  # Rows whose target is known after step k.
        weights = np.linalg.lstsq(rows[begin:end], speeds[begin + 1 + horizon : k + 1])[0]
        foretold[k] = rows[k - 1] @ weights
    return foretold


def simulated(case: str, seed: int, num_ranks: int) -> list[list[Step]]:
    """Steps of some ranks of a contention case of the simulator, with an even split."""
    conditions = Conditions.of(replace(PREDICTION_CASES[case](), seed=seed))
    cluster, size = Cluster(conditions), conditions.scenario.size
    batch_sizes = np.full(size, conditions.scenario.global_batch_size // size)
    ranks: list[list[Step]] = [[] for _ in range(num_ranks)]
    for k in range(conditions.scenario.steps):
        seen = cluster.measure([cluster.play(batch_sizes, k + 1)])
        for i, steps in enumerate(ranks):
            busy, load = float(seen.busy_seconds[i]), float(seen.cpu_load[i])
            steps.append(Step(busy, load, float(seen.memory_load[i]), math.nan))
    return ranks


def forecasts(steps: list[Step], horizon: int, first: int) -> Forecasts:
    """Everything that is compared."""
    from benchmarks.papers import networks  # TensorFlow takes seconds to import.

    speeds = 1.0 / np.array([step.seconds for step in steps])
    loads = [(step.cpu_load, step.memory_load) for step in steps]
    inputs = np.column_stack([speeds, np.nan_to_num(loads, nan=0.5)])
    return {
        "last value": by_model(LastRound(), steps),
        "EWMA": by_model(Ewma(), steps),
        "autoregression": by_autoregression(speeds, horizon),
        "RNN": networks.forecast("RNN", inputs, speeds, horizon, first),
        "LSTM": networks.forecast("LSTM", inputs, speeds, horizon, first),
        "NARX": by_model(Narx(), steps),
        PRESET: by_model(NarxOrLast(horizon), steps),
    }


def errors(
    steps: list[Step], foretold: Forecasts, horizon: int, first: int
) -> dict[str, NDArray[np.float64]]:
    """Root mean square errors in parts of the undisturbed speed, one for each block of steps."""
    speeds = 1.0 / np.array([step.seconds for step in steps])
    undisturbed = np.percentile(speeds, 90)
    found = {}
    for name, values in foretold.items():
        error = (values[first:-horizon] - speeds[first + horizon :]) / undisturbed
        blocks = np.array_split(error, _BLOCKS)
        found[name] = np.array([np.sqrt(np.mean(block**2)) for block in blocks])
    return found


def rows_of(records: list[list[Step]], horizon: int, cluster: str) -> list[Row]:
    """A row for each forecast; the errors of several ranks are put together."""
    found: dict[str, list[NDArray[np.float64]]] = {}
    for steps in records:
        first = len(steps) // 2
        for name, values in errors(steps, forecasts(steps, horizon, first), horizon, first).items():
            found.setdefault(name, []).append(values)
    rows = []
    for name, parts in found.items():
        values = np.concatenate(parts)
        here = f"{np.sqrt(np.mean(values**2)):.3f}"
        _, spread = spread_of(values, ".3f", "blocks")
        published = {"NARX": "the least error", PRESET: "-"}.get(name, "more than NARX")
        rows.append(Row(f"{name}, {horizon} ahead: error", published, here, spread, cluster))
    return rows


def main() -> None:
    """Prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", type=Path, default=Path("build/papers/loads.csv"))
    parser.add_argument("--horizons", type=int, nargs="+", default=[1, HORIZON])
    parser.add_argument("--json", type=Path, default=Path("build/papers/prediction.json"))
    parser.add_argument("--simulated", choices=PREDICTION_CASES, help="instead of a record")
    parser.add_argument("--seed", type=int, default=0, help="of what is simulated")
    parser.add_argument("--ranks", type=int, default=4, help="that are simulated")
    options = parser.parse_args()
    if options.simulated:
        records = simulated(options.simulated, options.seed, options.ranks)
        cluster = f"simulated, {options.simulated}, {options.ranks} ranks"
    else:
        records = [read(options.csv)]
        seconds = np.median([step.seconds for step in records[0]])
        cluster = f"shared host, {len(records[0])} steps of {seconds:.2f} s"
    if len(records[0]) < _LEAST_STEPS:
        raise SystemExit(f"{len(records[0])} steps are too few; expected {_LEAST_STEPS} or more.")
    rows = [row for horizon in options.horizons for row in rows_of(records, horizon, cluster)]
    report("LB-BSP, forecast of speeds", rows, options.json)


if __name__ == "__main__":
    main()
