"""The figures of a run: how near the oracle it was, how soon, and at what price."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.conditions import NEAR
from hvd_dbs.simulator.simulation import Run

HOLD_STEPS = 10
"""Steps that a plan has to stay near the oracle to count as there."""


@dataclass(frozen=True)
class Recovery:
    """How long it took to be near the oracle after something happened.

    Attributes:
        step: Where it happened; 0 is the cold start.
        steps: Steps until near; None if the run's end or the next disturbance came first.
        seconds: The same on the virtual clock.
    """

    step: int
    steps: int | None
    seconds: float | None


@dataclass(frozen=True)
class Figures:
    """The figures of a run. Near means 95 % of the oracle's throughput.

    Attributes:
        throughput_over_oracle: The oracle's seconds over the run's, for all steps, both without
            noise and pauses; what changes of plan cost counts.
        second_half_over_oracle: The same for the second half of the steps alone.
        samples_per_second: On the virtual clock, noise and pauses included.
        cold_start: Time to be near from the first step on.
        recoveries: Time to be near again, for each disturbance that moved the best plan.
        num_plan_changes: Changes of plan by decisions.
        num_decisions: Decisions.
        largest_regret_seconds: Most seconds over the oracle in a single step.
        largest_regret_step: That step.
        largest_sum_error: Largest `|sum(b) - B|` of all plans; always 0.
    """

    throughput_over_oracle: float
    second_half_over_oracle: float
    samples_per_second: float
    cold_start: Recovery
    recoveries: tuple[Recovery, ...]
    num_plan_changes: int
    num_decisions: int
    largest_regret_seconds: float
    largest_regret_step: int
    largest_sum_error: int

    @property
    def median_recovery_steps(self) -> float | None:
        """Steps to be near again, median over the disturbances; None if most did not get there."""
        steps = [np.inf if entry.steps is None else entry.steps for entry in self.recoveries]
        median = float(np.median(steps)) if steps else np.inf
        return median if np.isfinite(median) else None


def figures_of(run: Run) -> Figures:
    """Computes the figures."""
    oracle, true = run.conditions.oracle_seconds, run.true_seconds
    scenario = run.conditions.scenario
    half = len(true) // 2
    regret = true - oracle
    near = oracle >= NEAR * true
    starts = np.concatenate([[0], run.conditions.disturbed, [len(true)]]).astype(np.int64)
    recoveries = [
        _recovery(near, run.clock_seconds, int(start), int(stop))
        for start, stop in itertools.pairwise(starts)
    ]
    sums = [int(change.batch_sizes.sum()) for change in run.changes]
    return Figures(
        throughput_over_oracle=float(oracle.sum() / true.sum()),
        second_half_over_oracle=float(oracle[half:].sum() / true[half:].sum()),
        samples_per_second=scenario.global_batch_size * len(true) / float(run.clock_seconds.sum()),
        cold_start=recoveries[0],
        recoveries=tuple(recoveries[1:]),
        num_plan_changes=sum(not change.resized for change in run.changes[1:]),
        num_decisions=run.num_decisions,
        largest_regret_seconds=float(regret.max()),
        largest_regret_step=int(regret.argmax()),
        largest_sum_error=max(abs(total - scenario.global_batch_size) for total in sums),
    )


def _recovery(
    near: NDArray[np.bool_], clock_seconds: NDArray[np.float64], start: int, stop: int
) -> Recovery:
    """When the plan came near, and stayed so for a while or until the next disturbance."""
    held = 0
    for step in range(start, stop):
        held = held + 1 if near[step] else 0
        if held == HOLD_STEPS or (held and step == stop - 1):
            first = step - held + 1
            return Recovery(start, first - start, float(clock_seconds[start:first].sum()))
    return Recovery(start, None, None)
