"""Pauses, false alarms, ranks that leave or join; and all kinds by name, `slowdowns` included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hvd_dbs.simulator.checks import require, require_at_least, require_fraction, require_positive
from hvd_dbs.simulator.disturbance import Disturbance
from hvd_dbs.simulator.periods import Periods
from hvd_dbs.simulator.slowdowns import (
    Drift,
    Neighbour,
    RandomNeighbours,
    SlowNetwork,
    Thermal,
)


@dataclass(frozen=True, kw_only=True)
class Pauses(Disturbance):
    """Steps in which a rank stands still for a while: a checkpoint, a page storm, a lost packet.

    No plan can make up for them, so they count in the time but not in the oracle; a strategy
    that moves samples because of one is what they show.

    Attributes:
        at_steps: The steps, the same for all these ranks.
        chance: Chance of one more in each step of each rank, 0 to 1.
        pause_ms: Length.
    """

    at_steps: tuple[int, ...] = ()
    chance: float = 0.0
    pause_ms: float = 1000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_steps:
            require("at_steps", self.at_steps, min(self.at_steps) >= 0, "steps from 0 on")
        require_fraction("chance", self.chance)
        require_positive("pause_ms", self.pause_ms)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """Periods of one step."""
        ranks = self.on(size)
        num_random = random.binomial(num_steps * len(ranks), self.chance)
        rank = np.concatenate(
            [np.repeat(ranks, len(self.at_steps)), random.choice(ranks, num_random)]
        )
        scripted = np.tile(np.asarray(self.at_steps, dtype=np.int64), len(ranks))
        start = np.concatenate([scripted, random.integers(0, num_steps, num_random)])
        return Periods.of(rank, start, start + 1, pause_seconds=self.pause_ms / 1000)


@dataclass(frozen=True, kw_only=True)
class FalseAlarms(Disturbance):
    """Load that slows nobody down: another core's work.

    Attributes:
        chance: Chance that one begins, in each step of each rank, 0 to 1.
        mean_steps: Mean of their (exponential) lengths.
        load: Processor use that the host shows, 0 to 1.
    """

    chance: float = 0.002
    mean_steps: float = 10.0
    load: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction("chance", self.chance)
        require_positive("mean_steps", self.mean_steps)
        require_fraction("load", self.load)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """Periods of load alone."""
        ranks = self.on(size)
        number = random.binomial(num_steps * len(ranks), self.chance)
        start = random.integers(0, num_steps, number)
        lengths = np.minimum(random.exponential(self.mean_steps, number), num_steps)
        stop = start + 1 + lengths.astype(np.int64)
        return Periods.of(random.choice(ranks, number), start, stop, load=self.load)


@dataclass(frozen=True, kw_only=True)
class Leave(Disturbance):
    """Ranks that leave the job.

    Attributes:
        at_step: First step without them.
    """

    at_step: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ranks", self.ranks, self.ranks is not None, "the ranks that leave")
        require_at_least("at_step", self.at_step, 1)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """Absence until the end."""
        return Periods.of(self.on(size), self.at_step, num_steps, absent=1)


@dataclass(frozen=True, kw_only=True)
class Join(Disturbance):
    """Ranks that join the job later.

    Attributes:
        at_step: First step with them.
    """

    at_step: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ranks", self.ranks, self.ranks is not None, "the ranks that join")
        require_at_least("at_step", self.at_step, 1)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """Absence before."""
        return Periods.of(self.on(size), 0, self.at_step, absent=1)


DISTURBANCES: Mapping[str, type[Disturbance]] = MappingProxyType(
    {
        "neighbour": Neighbour,
        "random_neighbours": RandomNeighbours,
        "drift": Drift,
        "thermal": Thermal,
        "slow_network": SlowNetwork,
        "pauses": Pauses,
        "false_alarms": FalseAlarms,
        "leave": Leave,
        "join": Join,
    }
)
"""Kinds of disturbances by the name that scenario files use."""
