"""Drives the same controller as a running job, on a modelled cluster and a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Controller, Measurement, Plan, Strategy, strategies
from hvd_dbs.balancing.change_signal import STEPS_WATCHED
from hvd_dbs.balancing.measurement import typical_seconds
from hvd_dbs.simulator.cluster import Cluster, Played
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.costs import chance_at
from hvd_dbs.simulator.watch import Watch

MOST_VALUES = 2_000_000
"""Steps times ranks that are played in one piece where no decision asks for a piece."""

Progress = Callable[[int], None]
"""Is told how many steps have been played since it was told last."""

OnRound = Callable[[int, Measurement], None]
"""Receives how many steps are over at the end of a round, and what its ranks have measured."""


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


def simulate(
    conditions: Conditions,
    strategy: Strategy,
    progress: Progress | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Runs a strategy through all steps.

    When ranks leave or join, a new controller starts, which knows nothing but the plan: ranks
    that stay keep their shares of each other, new ones get the mean share. A fixed split
    (`even`, `static`) starts from its own ratios instead.

    Args:
        conditions: What happens.
        strategy: What is judged; its ratios, if any, are for all ranks.
        progress: Told about steps played.
        on_round: Receives each round.

    Raises:
        ValueError: If ratios do not fit the ranks, or some ranks cannot take the global batch.
    """
    progress, on_round = progress or (lambda _: None), on_round or (lambda *_: None)
    return _Driver(conditions, strategy, progress, on_round).run()


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
    """The presets that are compared: those of the package, and "static".

    Without "observe", whose plans are those of "even".
    """
    first, *others = (name for name in strategies.PRESETS if name != "observe")
    return (first, "static", *others)


class _Driver:
    """One run under way: when rounds end and plans begin, as in a running job."""

    def __init__(
        self, conditions: Conditions, strategy: Strategy, progress: Progress, on_round: OnRound
    ) -> None:
        self._conditions, self._strategy = conditions, strategy
        self._progress, self._on_round = progress, on_round
        self._scenario = scenario = conditions.scenario
        self._steps, self._size = scenario.steps, scenario.size
        self._cluster = Cluster(conditions)
        self._changes: list[PlanChange] = []
        self._planned: list[PlanChange] = []
        self._warnings: dict[str, None] = {}
        self._num_decisions = 0
        self._batch_sizes = np.zeros(self._size, dtype=np.int64)

    def run(self) -> Run:
        true_seconds, clock_seconds = np.empty(self._steps), np.empty(self._steps)
        while self._cluster.step < self._steps:
            self._resize()
            resize = self._cluster.next_resize()
            pieces: list[Played] = []
            balancing_seconds = 0.0
            round_end = self._round_end(self._cluster.step)
            while (step := self._cluster.step) < resize:
                self._begin_plans(step)
                next_plan = self._planned[0].step if self._planned else resize
                most = 1 if self._leaves_cadence else MOST_VALUES // self._size + 1
                stop = min(resize, round_end, next_plan, step + most)
                played = self._cluster.play(self._batch_sizes, stop)
                true_seconds[step:stop] = played.true_seconds
                clock_seconds[step:stop] = played.clock_seconds
                true_seconds[step] += balancing_seconds
                clock_seconds[step] += balancing_seconds
                self._progress(stop - step)
                pieces.append(played)
                balancing_seconds = 0.0
                if stop == round_end and stop < resize:
                    round_end = self._decide(pieces, stop)
                    balancing_seconds = self._balancing_seconds(stop)
                    pieces = []
                elif self._leaves_cadence and not self._watch.has_changed:
                    self._watch.look(pieces)
                    if self._watch.has_changed:  # All ranks know after the next step.
                        round_end = min(round_end, stop + 1)
                elif self._strategy.every is None:
                    pieces = []
        return Run(
            self._conditions,
            self._strategy.name,
            true_seconds,
            clock_seconds,
            tuple(self._changes),
            self._num_decisions,
            tuple(self._warnings),
        )

    def _round_end(self, step: int) -> int:
        """Where the round that begins with this step ends.

        The first step of an epoch is not measured, so rounds within epochs do not count it.
        """
        per_epoch = self._scenario.steps_per_epoch
        if self._strategy.every is None:
            return self._steps
        if self._strategy.every == "epoch":
            return step + per_epoch - step % per_epoch
        wanted = max(1, self._controller.steps_to_next or 1)
        return self._scenario.after_measured(step, wanted)

    @property
    def _is_waited_for(self) -> bool:
        return self._strategy.every == "epoch"

    def _balancing_seconds(self, step: int) -> float:
        """What the decision after this step costs all ranks."""
        scenario = self._scenario
        return scenario.seconds(self._is_waited_for, chance_at(scenario.seed, step))

    @property
    def _leaves_cadence(self) -> bool:
        return self._strategy.every == "automatic"

    def _resize(self) -> None:
        """A controller for the ranks that are present."""
        step, present = self._cluster.step, self._cluster.present
        scenario, strategy = self._scenario, self._strategy
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
        self._controller.decision_seconds = scenario.mean_seconds(self._is_waited_for)
        if step > 0 and strategy.every is not None:
            stayed = before > 0
            mean = float(before[stayed].mean()) if np.any(stayed) else 1.0
            shares = np.where(stayed, before, mean)
            self._controller.adopt(Plan.proportional(scenario.global_batch_size, shares, bounds))
        self._present, self._watch = present, Watch(scenario, present)
        self._planned = [self._plan(step, f"{len(present)} ranks", resized=step > 0)]

    def _decide(self, pieces: Sequence[Played], step: int) -> int:
        """Decides after so many steps; returns where the round ends that begins then."""
        scenario = self._scenario
        unmeasured = scenario.steps_per_epoch if scenario.steps_per_epoch > 1 else None
        measurement = self._cluster.measure(pieces, unmeasured)
        self._controller.note_step(*_last_step(pieces, self._present))
        had_changed = self._watch.has_changed
        if self._leaves_cadence:
            measurement = self._watch.end_round(pieces, measurement)
        self._on_round(step, measurement)
        decision = self._controller.decide(self._controller.observe(measurement))
        self._watch.expected = self._controller.expected_steps
        self._num_decisions += 1
        if decision.warning:
            self._warnings[decision.reason] = None
        if decision.changed:
            to_epoch_end = -step % scenario.steps_per_epoch
            first = step + min(scenario.steps_ahead, to_epoch_end)
            while self._planned and self._planned[-1].step >= first:
                self._planned.pop()  # A later decision's plan takes the place of this one.
            self._planned.append(self._plan(first, decision.reason))
        end = self._round_end(step)
        if had_changed and not decision.changed:
            # A pause, or what needs to be seen twice to be believed.
            end = min(end, scenario.after_measured(step, STEPS_WATCHED))
        return end

    def _plan(self, step: int, reason: str, resized: bool = False) -> PlanChange:
        batch_sizes = np.zeros(self._size, dtype=np.int64)
        batch_sizes[self._present] = self._controller.batch_sizes
        return PlanChange(step, batch_sizes, reason, resized)

    def _begin_plans(self, step: int) -> None:
        """Lets the plan hold that begins here, if one does."""
        if self._planned and self._planned[0].step <= step:
            change = self._planned.pop(0)
            self._batch_sizes = change.batch_sizes
            self._changes.append(change)


def _last_step(
    pieces: Sequence[Played], present: NDArray[np.int64]
) -> tuple[float, NDArray[np.float64]]:
    """What a step with the last plan took as a whole, noise included, and the plan."""
    last = pieces[-1]
    same = [piece for piece in pieces if np.array_equal(piece.batch_sizes, last.batch_sizes)]
    seconds = typical_seconds(np.concatenate([piece.clock_seconds for piece in same]))
    return seconds, last.batch_sizes[present].astype(np.float64)
