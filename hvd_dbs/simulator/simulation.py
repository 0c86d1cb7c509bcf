"""Drives the same controller as a running job, on a modelled cluster and a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Controller, Measurement, Plan, Strategy, strategies
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.conditions import Conditions

MOST_VALUES = 2_000_000
"""Steps times ranks that are played in one piece where no decision asks for a piece."""

Progress = Callable[[int], None]
"""Is told how many steps have been played since it was told last."""


@dataclass(frozen=True)
class PlanChange:
    """A plan and from where it holds.

    Attributes:
        step: First step with it.
        batch_sizes: Samples by rank, 0 for absent ranks, shape `[size]`.
        reason: The decision's, or why it was not a decision.
        resized: Whether ranks left or joined.
    """

    step: int
    batch_sizes: NDArray[np.int64]
    reason: str
    resized: bool = False


@dataclass(frozen=True)
class Run:
    """What a strategy made of the conditions.

    Attributes:
        conditions: What it met.
        strategy: Its name.
        true_seconds: Seconds of each step without noise and pauses, what changes of plan cost
            included, shape `[steps]`.
        clock_seconds: Seconds of each step on the virtual clock, shape `[steps]`.
        changes: The plans, the first one included.
        num_decisions: How often the strategy was asked.
        warnings: Reasons of decisions that had something to complain about, each once.
    """

    conditions: Conditions
    strategy: str
    true_seconds: NDArray[np.float64]
    clock_seconds: NDArray[np.float64]
    changes: tuple[PlanChange, ...]
    num_decisions: int
    warnings: tuple[str, ...]


def simulate(conditions: Conditions, strategy: Strategy, progress: Progress | None = None) -> Run:
    """Runs a strategy through all steps.

    When ranks leave or join, a new controller starts, which knows nothing but the plan: ranks
    that stay keep their shares of each other, new ones get the mean share. A fixed split
    (`even`, `static`) starts from its own ratios instead.

    Args:
        conditions: What happens.
        strategy: What is judged; its ratios, if any, are for all ranks.
        progress: Told about steps played.

    Raises:
        ValueError: If ratios do not fit the ranks, or some ranks cannot take the global batch.
    """
    return _Driver(conditions, strategy, progress or (lambda _: None)).run()


def preset(name: str, conditions: Conditions) -> Strategy:
    """The preset of this name; "static" gets the scenario's ratios.

    Raises:
        ValueError: If the name is unknown.
    """
    if name != "static":
        if name not in strategies.PRESETS:
            raise ValueError(
                f"strategy={name!r} is unknown; expected one of {', '.join(preset_names())}."
            )
        return strategies.PRESETS[name]()
    scenario = conditions.scenario
    if scenario.ratios is not None:
        return strategies.static(scenario.ratios)
    even = np.asarray(
        Plan.proportional(
            scenario.global_batch_size, [1.0] * scenario.size, scenario.bounds
        ).batch_sizes
    )
    return strategies.static((even / conditions.curves.seconds(even)).tolist())


def preset_names() -> tuple[str, ...]:
    """The presets that can be simulated: those of the package, and "static"."""
    names = list(strategies.PRESETS)
    if "static" not in names:
        names.insert(1, "static")
    return tuple(names)


class _Driver:
    """One run under way."""

    def __init__(self, conditions: Conditions, strategy: Strategy, progress: Progress) -> None:
        self._conditions, self._strategy, self._progress = conditions, strategy, progress
        scenario = conditions.scenario
        self._steps, self._size = scenario.steps, scenario.size
        self._cluster = Cluster(conditions)
        self._changes: list[PlanChange] = []
        self._warnings: dict[str, None] = {}
        self._num_decisions = 0
        self._batch_sizes = np.zeros(self._size, dtype=np.int64)

    def run(self) -> Run:
        true_seconds, clock_seconds = np.empty(self._steps), np.empty(self._steps)
        while (start := self._cluster.step) < self._steps:
            self._resize()
            resize = self._cluster.next_resize()
            while (step := self._cluster.step) < resize:
                stop = min(resize, step + self._round_steps(step))
                switched = len(self._changes) > 1 and self._changes[-1].step == step
                played = self._cluster.play(self._batch_sizes, stop, switched)
                true_seconds[step:stop] = played.true_seconds
                clock_seconds[step:stop] = played.clock_seconds
                self._progress(stop - step)
                if stop < resize and self._strategy.every is not None:
                    self._decide(played.measurement, stop)
            if self._cluster.step == start:
                raise RuntimeError(f"step {start} was not played. This is a defect.")
        return Run(
            self._conditions,
            self._strategy.name,
            true_seconds,
            clock_seconds,
            tuple(self._changes),
            self._num_decisions,
            tuple(self._warnings),
        )

    def _round_steps(self, step: int) -> int:
        """Steps until the next decision."""
        per_epoch = self._conditions.scenario.steps_per_epoch
        if self._strategy.every is None:
            return max(1, MOST_VALUES // self._size)
        if self._strategy.every == "epoch":
            return per_epoch - step % per_epoch
        return max(1, self._controller.steps_to_next or 1)

    def _resize(self) -> None:
        """A controller for the ranks that are present."""
        step, present = self._cluster.step, self._cluster.present
        scenario, strategy = self._conditions.scenario, self._strategy
        before = self._batch_sizes[present]
        if strategy.ratios is not None:
            if len(strategy.ratios) != self._size:
                strategy.start_shares(self._size)  # Says what is wrong.
            strategy = replace(
                strategy, ratios=tuple(strategy.ratios[rank] for rank in present.tolist())
            )
        bounds = scenario.bounds_of(present.tolist())
        self._controller = Controller(
            strategy, scenario.global_batch_size, bounds, num_rows=len(present)
        )
        if step > 0 and strategy.every is not None:
            stayed = before > 0
            mean = float(before[stayed].mean()) if np.any(stayed) else 1.0
            shares = np.where(stayed, before, mean)
            self._controller.adopt(Plan.proportional(scenario.global_batch_size, shares, bounds))
        self._present = present
        self._take_over(step, f"{len(present)} ranks", resized=step > 0)

    def _decide(self, measurement: Measurement, step: int) -> None:
        decision = self._controller.decide(self._controller.observe(measurement))
        self._num_decisions += 1
        if decision.warning:
            self._warnings[decision.reason] = None
        if decision.changed:
            self._take_over(step, decision.reason)

    def _take_over(self, step: int, reason: str, resized: bool = False) -> None:
        self._batch_sizes = np.zeros(self._size, dtype=np.int64)
        self._batch_sizes[self._present] = self._controller.plan.batch_sizes
        self._changes.append(PlanChange(step, self._batch_sizes, reason, resized))
