"""A model of a job from its journal: what a step would take if its ranks were other ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.simulate.replay import job_rounds
from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.job.step_parts import StepParts
from hvd_dbs.simulator.curve_fit import FittedCurve, fit_curve
from hvd_dbs.simulator.replay import Replay, replay_of

FIXED_SPLIT = ("even", "static", "observe")
"""Strategies that keep their split, whatever the ranks do."""

MOST_ROUNDS = 2000
"""Newest rounds that a verdict looks at, at most: more of them take seconds, and tell no more."""

_CALM = 20
"""Percentile of a rank's paces that is its pace while nothing disturbs it."""

_MOST_INPUT = 0.99
"""Part of a rank's time in which it waits for data, at most: some work there always is."""

_MOST_REFERENCES = 64
"""Ranks that the median rank is found among: enough for a median of thousands."""

_FEW_ROUNDS = 3
"""Fewer cannot be resampled to see whether they agree."""

_MOST_DRAWS, _MOST_NUMBERS = 64, 2_000_000
"""Noisy steps that a mean step is the mean of, and numbers drawn for them at most."""


@dataclass(frozen=True)
class JobModel:
    """The newest rounds of a job, with a curve for each rank. All rows are by round.

    Attributes:
        hosts: Of the ranks, by rank.
        strategy: What the job ran.
        global_batch_size: Samples of all ranks in a step.
        entries: The rounds that are looked at: the newest with half of the job's steps, or all.
        numbers: Which of the journal's rounds these are, shape `[rounds]`.
        replay: Of all rounds, for the simulator.
        knows_steps: Whether the journal says how many steps a round has.
        num_steps: Steps of each round, 1 where unknown, shape `[rounds]`.
        batch_sizes: Local batch sizes, shape `[rounds, size]`.
        seconds: Busy seconds, shape `[rounds, size]`.
        input_seconds: Part of them in which a rank waits for data, 0 where unknown, likewise.
        step_seconds: Of a whole step, shape `[rounds]`.
        parts: Of a step.
        curves: A rank's time at other batch sizes.
        paces: How much longer a rank took than its curve says, shape `[rounds, size]`.
    """

    hosts: tuple[str, ...]
    strategy: str
    global_batch_size: int
    entries: tuple[RoundEntry, ...]
    numbers: NDArray[np.int64]
    replay: Replay
    knows_steps: bool
    num_steps: NDArray[np.float64]
    batch_sizes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    input_seconds: NDArray[np.float64]
    step_seconds: NDArray[np.float64]
    parts: tuple[StepParts, ...]
    curves: tuple[FittedCurve, ...]
    paces: NDArray[np.float64]

    @classmethod
    def of(cls, part: JournalPart, newest: bool = True) -> JobModel:
        """The model of a part of a journal.

        Args:
            part: Of a journal.
            newest: Whether to look at the newest rounds only.

        Raises:
            ValueError: If no round has measured a step, or a rank has no usable time.
        """
        numbers = [
            number
            for number, entry in enumerate(part.rounds)
            if (number >= len(part.rounds) - MOST_ROUNDS or not newest)
            and entry.step_seconds > 0
            and np.isfinite(entry.busy_seconds).any()
        ]
        known = [part.rounds[number] for number in numbers]
        if not known:
            raise ValueError("no round has measured a step yet.")
        knows_steps = all(entry.num_steps for entry in known)
        counted = known if knows_steps else [replace(entry, num_steps=1) for entry in known]
        rounds = job_rounds(JournalPart(part.job, tuple(counted)), "journal")
        replay = replay_of(rounds)
        usable = (rounds.batch_sizes > 0) & (rounds.busy_seconds > 0)
        curves = tuple(
            fit_curve(
                rounds.batch_sizes[known_rounds, rank],
                rounds.busy_seconds[known_rounds, rank],
                rounds.lengths[known_rounds].astype(np.float64),
            )
            for rank, known_rounds in enumerate(usable.T)
        )
        expected = np.stack(
            [curve.at(rounds.batch_sizes[:, rank]) for rank, curve in enumerate(curves)], axis=1
        )
        new = slice(_first_of_newest(rounds.lengths) if newest else 0, None)
        seconds = np.where(usable, rounds.busy_seconds, expected)[new]
        waits = np.array([entry.input_seconds or (0.0,) * len(curves) for entry in known[new]])
        return cls(
            hosts=part.job.hosts,
            strategy=part.job.strategy,
            global_batch_size=part.job.global_batch_size,
            entries=tuple(known[new]),
            numbers=np.array(numbers)[new],
            replay=replay,
            knows_steps=knows_steps,
            num_steps=rounds.lengths[new].astype(np.float64),
            batch_sizes=rounds.batch_sizes[new],
            seconds=seconds,
            input_seconds=np.clip(np.nan_to_num(waits), 0.0, _MOST_INPUT * seconds),
            step_seconds=rounds.step_seconds[new],
            parts=tuple(StepParts.of(entry) for entry in known[new]),
            curves=curves,
            paces=replay.paces.factors[new],
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def has_few_rounds(self) -> bool:
        """Whether resampled rounds say nothing, for there are too few of them."""
        return len(self.num_steps) < _FEW_ROUNDS

    @property
    def keeps_split(self) -> bool:
        """Whether the job's strategy never changes the split."""
        return self.strategy in FIXED_SPLIT

    @property
    def knows_input(self) -> bool:
        """Whether the journal says how long ranks wait for data."""
        return any(np.isfinite(entry.input_seconds).any() for entry in self.entries)

    @cached_property
    def mean_step(self) -> float:
        """Seconds of a step."""
        return float(np.average(self.step_seconds, weights=self.num_steps))

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Busy seconds without waiting for data, shape `[rounds, size]`."""
        return self.seconds - self.input_seconds

    @cached_property
    def work_part(self) -> NDArray[np.float64]:
        """Part of its busy seconds in which each rank does not wait for data, shape `[size]`."""
        return mean_of(self.work / self.seconds, self.num_steps)

    @cached_property
    def curves_of_fixed_waits(self) -> tuple[FittedCurve, ...]:
        """The curves if ranks wait as long for the data of a few samples as for those of many.

        Of a rank whose batch sizes show how its time grows, the curve says so already.
        """
        return tuple(
            curve
            if curve.shows_growth
            else replace(curve, elasticity=curve.elasticity * self.work_part[rank])
            for rank, curve in enumerate(self.curves)
        )

    @cached_property
    def calm_paces(self) -> NDArray[np.float64]:
        """Each rank's pace while nothing disturbs it, shape `[size]`."""
        return np.asarray(np.percentile(self.paces, _CALM, axis=0, method="lower"))

    @cached_property
    def calm(self) -> NDArray[np.float64]:
        """By what to multiply busy seconds if nothing came and went, shape `[rounds, size]`."""
        return np.minimum(self.calm_paces / self.paces, 1.0)

    @cached_property
    def slowness(self) -> NDArray[np.float64]:
        """How many times as long a rank takes as the median one, at its batch size and calm pace.

        Of two ranks in the middle the faster one counts. Shape `[rounds, size]`.
        """
        calm = self.calm_paces * self.work_part
        stride = -(-self.size // _MOST_REFERENCES)
        reference = np.stack(
            [calm[rank] * self.curves[rank].at(self.batch_sizes) for rank in range(self.size)][
                ::stride
            ]
        )
        middle = np.sort(reference, axis=0)[(len(reference) - 1) // 2]
        own = [
            calm[rank] * self.curves[rank].at(self.batch_sizes[:, rank])
            for rank in range(self.size)
        ]
        return np.asarray(np.stack(own, axis=1) / middle)

    def steps(
        self,
        seconds: NDArray[np.float64],
        ranks: NDArray[np.intp] | None = None,
        network: float = 1.0,
    ) -> NDArray[np.float64]:
        """Seconds of a whole step if the ranks' work took so long, shape `[rounds]`.

        Noise included: in each step another rank may be the last one. What the model says of the
        job as it was, and what that measured, differ; their ratio corrects all other answers.

        Args:
            seconds: Shape `[rounds, ranks]`.
            ranks: Which these are; None: all.
            network: How many times as fast communication is.
        """
        return self._modelled(seconds, ranks, network) * self._correction

    @cached_property
    def _correction(self) -> NDArray[np.float64]:
        return self.step_seconds / self._modelled(self.seconds, None, 1.0)

    def _modelled(
        self, seconds: NDArray[np.float64], ranks: NDArray[np.intp] | None, network: float
    ) -> NDArray[np.float64]:
        scenario = self.replay.scenario
        draws = _MOST_NUMBERS // seconds.size // 2
        half = np.random.default_rng(0).standard_normal(
            (min(max(draws, 1), _MOST_DRAWS), self.size)
        )
        noise = np.exp(scenario.noise.jitter * np.concatenate([half, -half]))
        overlap, last = (part / network for part in scenario.communication.seconds(self.size))
        first = np.array([group.forward_fraction for group in scenario.ranks])
        if ranks is not None:
            noise, first = noise[:, ranks], first[ranks]
        steps = []
        for row in seconds:
            drawn = row * noise
            ready = drawn.max(axis=1)
            if overlap > 0:
                ready = np.maximum(ready, (drawn * first).max(axis=1) + overlap)
            steps.append(ready.mean() + last)
        return np.array(steps)


def _first_of_newest(lengths: NDArray[np.int64]) -> int:
    """The first of the newest rounds that have half of all steps."""
    left = np.cumsum(lengths[::-1])[::-1]
    return int(np.flatnonzero(2 * left >= left[0])[-1])


def mean_of(
    rows: NDArray[np.float64], weights: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """The mean over the first axis, rounds that count for so many steps."""
    return np.asarray(np.average(rows, axis=0, weights=weights))
