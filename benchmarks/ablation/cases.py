"""What the ablation runs on: the suite's scenario classes, two more, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.gpu_curves import generated_case
from hvd_dbs.simulator import suite
from hvd_dbs.simulator.curve_cases import curve_cases
from hvd_dbs.simulator.measured_curves import MeasuredCurve
from hvd_dbs.simulator.rank_groups import MeasuredRanks
from hvd_dbs.simulator.scenario import Noise, Scenario

CURVE_CASES = 2
"""Sets of devices for each seed: a single one says little about the others."""

PAUSES = "equal, pauses"
TUNING = "static, tuning"
GENERATED = {"curves: saw-tooth": ("sawtooth",), "curves: smooth": ("affine", "saturating")}
MEASURED = "curves: measured"

HALF_AS_LONG = {"contention", "delays", *GENERATED, MEASURED}
"""Classes with decisions at nearly each step, most of the time of all runs. What happens in them
happens all the time, or at the start, so half of the steps show it. How often neighbours come is
learnt from many of them."""


@dataclass(frozen=True)
class Cases:
    """All classes.

    Attributes:
        steps: Length of a run, half of it in some classes; disturbances that are fixed in time are
            moved with it.
        curves: File of measured curves; None: that class is missing.
    """

    steps: int
    curves: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The classes in the order of tables."""
        measured = (MEASURED,) if self.curves else ()
        return (*suite.SCENARIO_CLASSES, PAUSES, TUNING, *GENERATED, *measured)

    def ranks(self, name: str, wanted: Sequence[int]) -> tuple[int, ...]:
        """Numbers of ranks of a class; 0: each case has its own."""
        return (0,) if name in GENERATED or name == MEASURED else tuple(wanted)

    def scenarios(self, name: str, ranks: int, seed: int) -> list[Scenario]:
        """What a seed means in a class; its figure is the mean over these."""
        steps = self.steps // 2 if name in HALF_AS_LONG else self.steps
        with mock.patch.object(suite, "STEPS", steps):
            if name == PAUSES:
                found = [equal_with_pauses(ranks)]
            elif name == TUNING:
                found = [kernels_that_tune(ranks)]
            elif name in GENERATED:
                found = generated(GENERATED[name], seed)
            elif name == MEASURED and self.curves is not None:
                found = measured(self.curves, seed)
            else:
                found = [suite.SCENARIO_CLASSES[name](ranks)]
        return [replace(scenario, seed=seed) for scenario in found]


def measured(path: Path, seed: int) -> list[Scenario]:
    """Some sets of devices with global batch sizes that their measured curves cover."""
    every = list(curve_cases(path))
    chosen = np.random.default_rng(seed).choice(len(every), CURVE_CASES, replace=False)
    return [_as_in_the_suite(every[i]) for i in chosen]


def generated(kinds: Sequence[str], seed: int) -> list[Scenario]:
    """Some sets of devices with generated curves, of these kinds in turn."""
    found = []
    for number in range(CURVE_CASES):
        case = generated_case(kinds[number % len(kinds)], CURVE_CASES * seed + number)
        curves: dict[tuple[str | None, str], MeasuredCurve] = {
            (None, f"{rank}"): MeasuredCurve(least=1, seconds=row[1:])
            for rank, row in enumerate(case.table)
        }
        scenario = Scenario(
            name=case.name,
            global_batch_size=case.global_batch_size,
            ranks=tuple(MeasuredRanks(device=device) for _, device in curves),
            measured=curves,
        )
        found.append(_as_in_the_suite(scenario))
    return found


def equal_with_pauses(size: int) -> Scenario:
    """Equal ranks of which 2 % of the steps take three times as long: the best is to do nothing."""
    noise = Noise(outlier_chance=0.02, outlier_factor=3)
    return replace(suite.jitter_only(size), name=PAUSES, noise=noise)


def kernels_that_tune(size: int) -> Scenario:
    """Unequal ranks whose first step at a batch size takes 0.3 s more, as on GPUs."""
    return replace(suite.SCENARIO_CLASSES["static"](size), name=TUNING, switch_ms=300)


def _as_in_the_suite(scenario: Scenario) -> Scenario:
    """The scenario with the length, the epochs and the costs of the suite's."""
    return replace(
        scenario,
        steps=suite.STEPS,
        steps_per_epoch=suite.STEPS_PER_EPOCH,
        steps_ahead=Scenario.steps_ahead,
        background_ms=suite.BACKGROUND_MS,
        switch_ms=suite.FIRST_STEP_MS,
    )
