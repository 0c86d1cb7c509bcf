"""Disturbances that make the steps of a rank slower, for a time or for good."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.checks import (
    require,
    require_at_least,
    require_fraction,
    require_not_negative,
    require_period,
    require_positive,
)
from hvd_dbs.simulator.disturbance import Disturbance
from hvd_dbs.simulator.periods import Periods

STEPS_PER_STAIR = 5
"""Gradual changes are staircases with this many steps a stair."""


@dataclass(frozen=True, kw_only=True)
class Neighbour(Disturbance):
    """Another job on the host, from a step until another: slower steps, and processor load.

    Attributes:
        from_step: First slow step.
        to_step: First step that is not slow any more; None: never.
        slowdown: Factor on the step time.
        extra_ms: Milliseconds added to each step.
        load: Processor use that the host shows, 0 to 1; None: `1 - 1 / slowdown`.
        memory: Memory use that the host shows in addition, 0 to 1.
        lead_steps: Steps by which the load rises before the slowdown.
    """

    from_step: int = 0
    to_step: int | None = None
    slowdown: float = 1.0
    extra_ms: float = 0.0
    load: float | None = None
    memory: float = 0.2
    lead_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_period(self.from_step, self.to_step)
        require_positive("slowdown", self.slowdown)
        require_not_negative("extra_ms", self.extra_ms)
        if self.load is not None:
            require_fraction("load", self.load)
        require_fraction("memory", self.memory)
        require_at_least("lead_steps", self.lead_steps, 0)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """One period on each rank."""
        ranks = self.on(size)
        to_step = num_steps if self.to_step is None else self.to_step
        return Periods.of(
            ranks,
            self.from_step,
            to_step,
            log_factor=math.log(self.slowdown),
            extra_seconds=self.extra_ms / 1000,
            load=load_of(self.slowdown) if self.load is None else self.load,
            memory=self.memory,
            load_start=max(0, self.from_step - self.lead_steps),
        )


@dataclass(frozen=True, kw_only=True)
class RandomNeighbours(Disturbance):
    """On/off neighbours: each rank's host is quiet and busy in turn, for random times.

    Attributes:
        mean_quiet_steps: Mean of the (exponential) quiet times.
        mean_busy_steps: Mean of the (exponential) busy times.
        least_slowdown: Slowdowns are drawn evenly from this
        most_slowdown: to this.
        load_noise: Standard deviation of a neighbour's load around `1 - 1 / slowdown`.
        memory: Memory use that the host shows in addition, 0 to 1.
        lead_steps: Steps by which the load rises before the slowdown.
    """

    mean_quiet_steps: float = 150.0
    mean_busy_steps: float = 50.0
    least_slowdown: float = 1.5
    most_slowdown: float = 3.0
    load_noise: float = 0.05
    memory: float = 0.2
    lead_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("mean_quiet_steps", self.mean_quiet_steps)
        require_positive("mean_busy_steps", self.mean_busy_steps)
        require_positive("least_slowdown", self.least_slowdown)
        fits = self.least_slowdown <= self.most_slowdown < math.inf
        expected = f"at least least_slowdown={self.least_slowdown}"
        require("most_slowdown", self.most_slowdown, fits, expected)
        require_not_negative("load_noise", self.load_noise)
        require_fraction("memory", self.memory)
        require_at_least("lead_steps", self.lead_steps, 0)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """Busy periods on each rank, with quiet ones between them."""
        ranks = self.on(size)
        cycles = 4 + int(2 * num_steps / (self.mean_quiet_steps + self.mean_busy_steps))
        shape = (len(ranks), cycles)
        quiet, busy = (  # Longer than the run is as long as the run.
            1 + np.minimum(random.exponential(mean, shape), num_steps).astype(np.int64)
            for mean in (self.mean_quiet_steps, self.mean_busy_steps)
        )
        slowdown = random.uniform(self.least_slowdown, self.most_slowdown, shape)
        load = np.clip(load_of(slowdown) + self.load_noise * random.standard_normal(shape), 0, 1)
        stop = np.cumsum(quiet + busy, axis=1)
        start = stop - busy
        rank = np.broadcast_to(ranks[:, np.newaxis], shape)
        return Periods.of(
            rank.ravel(),
            start.ravel(),
            stop.ravel(),
            log_factor=np.log(slowdown).ravel(),
            load=load.ravel(),
            memory=self.memory,
            load_start=np.maximum(start.ravel() - self.lead_steps, 0),
        )


@dataclass(frozen=True, kw_only=True)
class Drift(Disturbance):
    """A machine that slowly becomes another: the factor moves from 1 to `slowdown` and stays.

    Attributes:
        from_step: Where it begins.
        to_step: Where it has become `slowdown`.
        slowdown: Factor on the step time at the end; below 1 the rank becomes faster.
    """

    from_step: int = 0
    to_step: int
    slowdown: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("from_step", self.from_step, 0)
        fits = self.to_step > self.from_step
        require("to_step", self.to_step, fits, f"a step after from_step={self.from_step}")
        require_positive("slowdown", self.slowdown)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """A stair every few steps, each of which stays."""
        ranks = self.on(size)
        starts = np.arange(self.from_step, self.to_step, STEPS_PER_STAIR)
        return Periods.of(
            np.repeat(ranks, len(starts)),
            np.tile(starts, len(ranks)),
            num_steps,
            log_factor=math.log(self.slowdown) / len(starts),
        )


@dataclass(frozen=True, kw_only=True)
class Thermal(Disturbance):
    """A device that gets hot: its clock falls in a few steps, and rises again when it has cooled.

    Attributes:
        from_step: First step at the first lower clock.
        to_step: First step at full clock again; None: it stays hot.
        slowdown: Factor on the step time at the lowest clock.
        levels: Number of lower clocks.
        steps_per_level: Steps from one clock to the next.
    """

    from_step: int = 0
    to_step: int | None = None
    slowdown: float = 1.5
    levels: int = 3
    steps_per_level: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("from_step", self.from_step, 0)
        require_positive("slowdown", self.slowdown)
        require_at_least("levels", self.levels, 1)
        require_at_least("steps_per_level", self.steps_per_level, 1)
        lowest = self.from_step + (self.levels - 1) * self.steps_per_level
        if self.to_step is not None:
            expected = f"a step after the last level's first step, {lowest}"
            require("to_step", self.to_step, self.to_step > lowest, expected)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """One period for each level, all of which end together."""
        ranks = self.on(size)
        starts = self.from_step + self.steps_per_level * np.arange(self.levels)
        return Periods.of(
            np.repeat(ranks, self.levels),
            np.tile(starts, len(ranks)),
            num_steps if self.to_step is None else self.to_step,
            log_factor=math.log(self.slowdown) / self.levels,
        )


@dataclass(frozen=True, kw_only=True)
class SlowNetwork(Disturbance):
    """A link that is slow for a time: all communication is, since the ranks' ring goes through it.

    No plan makes it shorter; what may change is how much of it is hidden.

    Attributes:
        from_step: First step with it.
        to_step: First step without it; None: it stays.
        slowdown: Factor on the time of all communication, at least 1.
    """

    from_step: int = 0
    to_step: int | None = None
    slowdown: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_period(self.from_step, self.to_step)
        require("slowdown", self.slowdown, 1 <= self.slowdown < math.inf, "a number from 1 on")

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """A period on each rank whose link it is."""
        to_step = num_steps if self.to_step is None else self.to_step
        factor = math.log(self.slowdown)
        return Periods.of(self.on(size), self.from_step, to_step, network_log_factor=factor)


@dataclass(frozen=True, kw_only=True)
class EpochFaults(Disturbance):
    """A worker that has no fault gets one at the beginning of an epoch, for some epochs.

    Attributes:
        steps_per_epoch: Steps of an epoch.
        least_ms: Milliseconds that each step takes longer are drawn evenly from this
        most_ms: to this.
        chance: Chance of each worker in each epoch.
        least_epochs: Fewest epochs that it lasts.
        most_epochs: Most of them.
    """

    steps_per_epoch: int
    least_ms: float
    most_ms: float
    chance: float = 0.1
    least_epochs: int = 4
    most_epochs: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("steps_per_epoch", self.steps_per_epoch, 1)
        require_positive("least_ms", self.least_ms)
        expected = f"at least least_ms={self.least_ms}"
        require("most_ms", self.most_ms, self.most_ms >= self.least_ms, expected)
        require_fraction("chance", self.chance)
        require_positive("chance", self.chance)
        require_at_least("least_epochs", self.least_epochs, 1)
        require_at_least("most_epochs", self.most_epochs, self.least_epochs)

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """Faults on each rank, with epochs without one between them."""
        ranks = self.on(size)
        shape = (len(ranks), 2 + num_steps // (self.steps_per_epoch * self.least_epochs))
        quiet = random.geometric(self.chance, shape)
        faulty = random.integers(self.least_epochs, self.most_epochs, shape, endpoint=True)
        stop = self.steps_per_epoch * np.cumsum(quiet + faulty, axis=1)
        return Periods.of(
            np.broadcast_to(ranks[:, np.newaxis], shape).ravel(),
            (stop - self.steps_per_epoch * faulty).ravel(),
            stop.ravel(),
            extra_seconds=random.uniform(self.least_ms, self.most_ms, shape).ravel() / 1000,
        )


def load_of(slowdown: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
    """Processor use by others that makes a rank slower by this factor: 2 is a half."""
    return np.maximum(0.0, 1 - 1 / np.asarray(slowdown))[()]
