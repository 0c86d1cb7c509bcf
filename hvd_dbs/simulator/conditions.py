"""A scenario with its seed: all that happens, and the best that can be made of it.

Nothing in here depends on a strategy, so that all strategies meet the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.oracle import Oracle
from hvd_dbs.simulator.periods import Periods
from hvd_dbs.simulator.rank_curves import RankCurves, make_curves
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.timeline import Segment, Timeline

NEAR = 0.95
"""The part of the oracle's throughput at which a plan counts as there."""


@dataclass(frozen=True)
class Conditions:
    """What a scenario and a seed make of it.

    Attributes:
        scenario: The scenario.
        curves: The ranks' undisturbed curves.
        periods: All that happens.
        oracle_seconds: The shortest step there is, by step, shape `[steps]`.
        disturbed: Steps at which what was the best plan falls below `NEAR` of the oracle,
            ascending; step 0, the cold start, is not among them.
    """

    scenario: Scenario
    curves: RankCurves
    periods: Periods
    oracle_seconds: NDArray[np.float64]
    disturbed: NDArray[np.int64]

    @classmethod
    def of(cls, scenario: Scenario) -> Conditions:
        """Draws what is random, and asks the oracle about each segment.

        Raises:
            ValueError: If the ranks present at some step cannot take the global batch.
        """
        root = np.random.SeedSequence(scenario.seed)
        curves_seed, *seeds = root.spawn(1 + len(scenario.disturbances))
        gamma = scenario.communication.gamma
        random = np.random.default_rng(curves_seed)
        curves = make_curves(scenario.ranks, scenario.measured, gamma, random)
        periods = Periods.join(
            [
                disturbance.periods(scenario.size, scenario.steps, np.random.default_rng(seed))
                for disturbance, seed in zip(scenario.disturbances, seeds, strict=True)
            ]
        )
        oracle_seconds, disturbed = _ask(scenario, curves, periods)
        return cls(scenario, curves, periods, oracle_seconds, disturbed)

    def timeline(self) -> Timeline:
        """The timeline from its start."""
        return Timeline(self.periods, self.scenario.size, self.scenario.steps)


def step_rule(scenario: Scenario, segment: Segment) -> StepRule:
    """What a step takes among the ranks that are present, on the network as it is."""
    overlap, last = scenario.communication.seconds(int(segment.present.sum()))
    return StepRule(segment.network * overlap, segment.network * last)


def _ask(
    scenario: Scenario, curves: RankCurves, periods: Periods
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The oracle's step seconds and the steps at which it has to move."""
    oracle = Oracle(curves, scenario.bounds, scenario.global_batch_size)
    timeline = Timeline(periods, scenario.size, scenario.steps)
    seconds, disturbed = np.empty(scenario.steps), []
    anchor, present, step = None, None, 0
    while step < scenario.steps:
        segment = timeline.segment(step)
        rule = step_rule(scenario, segment)
        try:
            best = oracle.best(segment, rule)
        except ValueError as error:
            raise ValueError(f"at step {step} {error}") from None
        seconds[step : segment.stop] = best.seconds
        resized = present is not None and not np.array_equal(present, segment.present)
        if (
            anchor is None
            or resized
            or (best.seconds < NEAR * oracle.seconds(anchor, segment, rule))
        ):
            if anchor is not None:
                disturbed.append(step)
            anchor, present = best.batch_sizes, segment.present
        step = segment.stop
    return seconds, np.asarray(disturbed, dtype=np.int64)
