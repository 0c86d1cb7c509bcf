"""Measured curves, taken in every combination of devices and many global batch sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_dbs.simulator.measured_curves import MeasuredCurve, read_curves
from hvd_dbs.simulator.rank_groups import MeasuredRanks
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.simulation import Run

STEPS_A_DECISION = 5
DECISIONS = 60
GLOBAL_BATCH_SIZES = range(64, 385, 16)


@dataclass(frozen=True)
class CurveFigures:
    """How a strategy ended on one case.

    Attributes:
        scenario: Devices and global batch size.
        strategy: Name.
        over_optimum: Step time of the plan after the last decision over the optimum, minus 1.
        changes_in_last_third: Plan changes in the last third of the steps.
    """

    scenario: str
    strategy: str
    over_optimum: float
    changes_in_last_third: int


def curve_cases(path: Path) -> Iterator[Scenario]:
    """A scenario for each subset of two or more devices and each batch size that it covers.

    Each decision holds at once, so that every round shows one plan.

    Raises:
        ValueError: If the file is wrong.
    """
    curves = read_curves(path)
    seeds = itertools.count()
    measured: dict[tuple[str | None, str], MeasuredCurve] = {
        (None, device): curve for device, curve in curves.items()
    }
    for count in range(2, len(curves) + 1):
        for devices in itertools.combinations(curves, count):
            least = sum(curves[device].least for device in devices)
            most = sum(curves[device].most for device in devices)
            for global_batch_size in GLOBAL_BATCH_SIZES:
                if least <= global_batch_size <= most:
                    yield Scenario(
                        name=f"{'+'.join(devices)} B={global_batch_size}",
                        global_batch_size=global_batch_size,
                        ranks=tuple(MeasuredRanks(device=device) for device in devices),
                        steps=STEPS_A_DECISION * (DECISIONS + 1),
                        steps_per_epoch=STEPS_A_DECISION * (DECISIONS + 1),
                        steps_ahead=0,
                        seed=next(seeds),
                        measured=measured,
                    )


def curve_figures(run: Run) -> CurveFigures:
    """How the run ended."""
    steps, conditions = len(run.true_seconds), run.conditions
    late = [change for change in run.changes[1:] if change.step >= steps * 2 // 3]
    return CurveFigures(
        conditions.scenario.name,
        run.strategy,
        float(run.true_seconds[-1] / conditions.oracle_seconds[-1] - 1),
        len(late),
    )


def spread_of(figures: list[CurveFigures]) -> tuple[float, float, float, float]:
    """Median, 90th and 95th percentile and most of `over_optimum`."""
    values = [entry.over_optimum for entry in figures]
    median, p90, p95, most = np.percentile(values, [50, 90, 95, 100])
    return float(median), float(p90), float(p95), float(most)
