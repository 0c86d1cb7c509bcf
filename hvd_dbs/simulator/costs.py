"""What balancing costs a running job, as it was measured: part of every scenario."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_dbs.balancing.steps_ahead import LEAST
from hvd_dbs.simulator.checks import require_at_least, require_not_negative

STEPS_AHEAD = 1 + LEAST
"""What a running job does: a round takes a step, and the data pipeline has prepared more; as few
as this, unless training has waited for data."""

LATE_CHANCE = 0.1
"""Decisions that cost the 90th percentile; the others cost the median."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What decisions cost, when their plans hold, and how old the known load is.

    The milliseconds are those of `scripts/bench.sh costs`: medians over all strategies,
    of 4 ranks on 4 virtual cores (AMD EPYC) on 2026-11-21. The ranks of such a job fill its cores,
    so that balancing takes time from training; with a core to spare it takes 0.85 and 0.1 ms.

    Attributes:
        decision_ms: Milliseconds that a decision at the end of an epoch costs all ranks, which
            wait for it: an allgather, a broadcast, and what rank 0 computes in between. Median.
        decision_p90_ms: The 90th percentile of that; below the median it counts as the median.
        background_ms: Milliseconds that a decision within an epoch costs all ranks. It is made
            beside the steps; this is what beginning and ending it takes. Median.
        background_p90_ms: The 90th percentile of that, likewise.
        switch_ms: Milliseconds that a new batch size costs its rank once: a retrace, an autotune.
        steps_ahead: Steps that a decision within an epoch is ahead of its plan, since the data
            pipeline has prepared them already. At the end of an epoch plans change at once.
        load_period_ms: Milliseconds from one sample of a host's load to the next, as
            `hvd_dbs.host.host_load` takes them. A sample is the mean since the last one, and is
            known until the next one: half a period old in the mean when it appears.
    """

    decision_ms: float = 5.5
    decision_p90_ms: float = 10.0
    background_ms: float = 0.26
    background_p90_ms: float = 3.8
    switch_ms: float = 1.0
    steps_ahead: int = STEPS_AHEAD
    load_period_ms: float = 500.0

    def __post_init__(self) -> None:
        require_at_least("steps_ahead", self.steps_ahead, 0)
        for name in ("decision_ms", "decision_p90_ms", "background_ms", "background_p90_ms"):
            require_not_negative(name, getattr(self, name))
        require_not_negative("switch_ms", self.switch_ms)
        require_not_negative("load_period_ms", self.load_period_ms)

    def mean_seconds(self, waits: bool) -> float:
        """The mean cost of a decision, for which training waits or not: what a job knows."""
        usual, late = self._seconds(waits)
        return (1 - LATE_CHANCE) * usual + LATE_CHANCE * late

    def seconds(self, waits: bool, chance: float) -> float:
        """What one decision costs.

        Args:
            waits: Whether training waits for it.
            chance: Where it falls among all, 0 to 1.
        """
        usual, late = self._seconds(waits)
        return late if chance < LATE_CHANCE else usual

    def _seconds(self, waits: bool) -> tuple[float, float]:
        """Median and 90th percentile, which is no less."""
        usual, late = (
            (self.decision_ms, self.decision_p90_ms)
            if waits
            else (self.background_ms, self.background_p90_ms)
        )
        return usual / 1000, max(usual, late) / 1000


FREE = Costs(
    decision_ms=0,
    decision_p90_ms=0,
    background_ms=0,
    background_p90_ms=0,
    switch_ms=0,
    load_period_ms=0,
)
"""Balancing that costs nothing, and load that is known at once."""


def chance_at(seed: int, step: int) -> float:
    """A number from 0 to 1 that belongs to a step: the same whatever strategy decides there."""
    return float(np.random.Generator(np.random.Philox(key=[seed, 3], counter=step)).random())
