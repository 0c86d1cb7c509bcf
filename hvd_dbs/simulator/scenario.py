"""What is simulated: a cluster, a job on it, and what happens meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hvd_dbs.balancing import Bounds
from hvd_dbs.simulator.checks import (
    require,
    require_at_least,
    require_count,
    require_fraction,
    require_not_negative,
    require_positive,
)
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.costs import Costs
from hvd_dbs.simulator.disturbance import Disturbance
from hvd_dbs.simulator.measured_curves import MeasuredCurve
from hvd_dbs.simulator.rank_groups import MOST_RANKS, MeasuredRanks, RankGroup

MOST_STEPS = 10**7
"""Steps of a scenario, at most: all of them are kept."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What makes two steps of the same rank differ.

    Attributes:
        jitter: Standard deviation of the log of each step's time, normally distributed: a step is
            half again as long more often than it is half as long.
        outlier_chance: Chance of an outlier in each step of each rank.
        outlier_factor: Factor on an outlier's time.
    """

    jitter: float = 0.03
    outlier_chance: float = 0.0
    outlier_factor: float = 4.0

    def __post_init__(self) -> None:
        require("jitter", self.jitter, 0 <= self.jitter <= 0.3, "a number from 0 to 0.3")
        require_fraction("outlier_chance", self.outlier_chance)
        require_positive("outlier_factor", self.outlier_factor)


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """What a host shows of itself, beside its disturbances.

    Attributes:
        idle_load: Processor use by others on a quiet host, 0 to 1.
        idle_memory: Memory use of a quiet host, 0 to 1.
        load_noise: Standard deviation of each reading of either.
    """

    idle_load: float = 0.05
    idle_memory: float = 0.3
    load_noise: float = 0.03

    def __post_init__(self) -> None:
        require_fraction("idle_load", self.idle_load)
        require_fraction("idle_memory", self.idle_memory)
        require_not_negative("load_noise", self.load_noise)


@dataclass(frozen=True, kw_only=True)
class Scenario(Costs):
    """One case for the simulator, with what balancing costs in it.

    Attributes:
        name: What tables call it.
        global_batch_size: Samples of all ranks in a step.
        ranks: The ranks, in groups.
        steps: Length of the run.
        steps_per_epoch: Where strategies that decide once per epoch decide.
        min_batch_size: Fewest samples of a rank, at least 1.
        max_batch_size: Most samples of a rank; None: no limit.
        multiple_of: Local batch sizes are multiples of this.
        strategy: Preset to run where no other is asked for.
        ratios: Split of the strategy "static", by rank; None: in proportion to the speeds that
            the undisturbed ranks have with the even split.
        seed: Of everything random, where no other is asked for.
        noise: Step-to-step noise.
        host_load: Readings of the hosts' load; None: the ranks do not know it.
        communication: The allreduce.
        disturbances: What happens.
        measured: Measured curves by file and device, for the ranks that name them.
    """

    name: str
    global_batch_size: int
    ranks: Sequence[RankGroup]
    steps: int = 400
    steps_per_epoch: int = 50
    min_batch_size: int = 1
    max_batch_size: int | None = None
    multiple_of: int = 1
    strategy: str = "adaptive"
    ratios: tuple[float, ...] | None = None
    seed: int = 0
    noise: Noise = field(default_factory=Noise)
    host_load: HostLoad | None = field(default_factory=HostLoad)
    communication: Communication = field(default_factory=Communication)
    disturbances: Sequence[Disturbance] = ()
    measured: Mapping[tuple[str | None, str], MeasuredCurve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("global_batch_size", "steps_per_epoch", "min_batch_size"):
            require_at_least(name, getattr(self, name), 1)
        require_count("steps", self.steps, MOST_STEPS)
        require_at_least("multiple_of", self.multiple_of, 1)
        if self.max_batch_size is not None:
            require_at_least("max_batch_size", self.max_batch_size, 1)
        require_at_least("seed", self.seed, 0)
        require("ranks", self.ranks, len(self.ranks) > 0, "at least one group of ranks")
        require_count("count of all ranks", self.size, MOST_RANKS)
        if self.ratios is not None:
            expected = f"one positive number for each of the {self.size} ranks"
            positive = all(0 < ratio < float("inf") for ratio in self.ratios)
            require("ratios", self.ratios, len(self.ratios) == self.size and positive, expected)
        for index, disturbance in enumerate(self.disturbances):
            try:
                disturbance.on(self.size)
            except ValueError as error:
                raise ValueError(f"disturbances[{index}]: {error}") from None
        for group in self.ranks:
            if isinstance(group, MeasuredRanks):
                self._curve_of(group)
        try:
            self.bounds.check(self.global_batch_size)
        except ValueError as error:
            if not any(isinstance(group, MeasuredRanks) for group in self.ranks):
                raise
            raise ValueError(
                f"{error}\nA measured curve is a bound: no plan leaves its batch sizes."
            ) from None

    def is_measured(self, step: int) -> bool:
        """Whether a step says something about the ranks' pace: not where an epoch begins."""
        return self.steps_per_epoch == 1 or step % self.steps_per_epoch != 0

    def after_measured(self, step: int, number: int) -> int:
        """The first step after so many measured ones from `step` on."""
        while number > 0:
            number -= self.is_measured(step)
            step += 1
        return step

    @property
    def size(self) -> int:
        """Number of ranks, those that join later included."""
        return sum(group.count for group in self.ranks)

    @property
    def bounds(self) -> Bounds:
        """Allowed local batch sizes: the job's, the group's and the measured range's together."""
        lows: list[int] = []
        highs: list[int | None] = []
        for group in self.ranks:
            low = max(self.min_batch_size, group.min_batch_size or 1)
            limits = [self.max_batch_size, group.max_batch_size]
            if isinstance(group, MeasuredRanks):
                curve = self._curve_of(group)
                low = max(low, curve.least)
                limits.append(curve.most)
            high = min((limit for limit in limits if limit is not None), default=None)
            lows += [low] * group.count
            highs += [high] * group.count
        return Bounds(tuple(lows), tuple(highs), self.multiple_of)

    def bounds_of(self, present: Sequence[int] | np.ndarray) -> Bounds:
        """The bounds of some of the ranks."""
        bounds = self.bounds
        return Bounds(
            tuple(bounds.minimum[rank] for rank in present),
            tuple(bounds.maximum[rank] for rank in present),
            bounds.multiple_of,
        )

    def _curve_of(self, group: MeasuredRanks) -> MeasuredCurve:
        if (group.file, group.device) not in self.measured:
            devices = [device for file, device in self.measured if file == group.file]
            raise ValueError(
                f"device={group.device!r} is not in the measured curves of "
                f"{group.file or '--curves'}; it has {', '.join(devices) or 'none'}."
            )
        return self.measured[(group.file, group.device)]
