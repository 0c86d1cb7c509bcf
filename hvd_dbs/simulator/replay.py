"""A scenario from what a job's journal says: what would other strategies have made of it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.order_statistics import QUARTILE, below_mean
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.costs import STEPS_AHEAD
from hvd_dbs.simulator.curve_fit import FittedCurve, fit_curve
from hvd_dbs.simulator.job_rounds import JobRounds
from hvd_dbs.simulator.measured_curves import MeasuredCurve
from hvd_dbs.simulator.pace_by_round import PaceByRound
from hvd_dbs.simulator.rank_groups import MeasuredRanks
from hvd_dbs.simulator.scenario import HostLoad, Noise, Scenario

_SURE = 2.0
"""Standard deviations of a round's mean from which its pace is another one, not noise."""

_LEAST_PACE = 0.02
"""Nor is a pace that differs by less another one."""

_LEAST_PAIRS = 4
"""Rounds that noise is known from, or pairs of rounds one after the other."""

_LEAST_JITTER, _MOST_JITTER = 0.002, 0.3
"""Less is none, and more is no noise."""

_EXPLAINED = 0.005
"""Noise may explain more than there is by this part of a step."""

_DRAWS = 400
"""Steps drawn to find the mean of the busiest rank's time among noisy ones."""

_WITHIN = np.tile((np.arange(_DRAWS // 2) + 0.5) / (_DRAWS // 2), 2)[:, np.newaxis, np.newaxis]
"""Where in its round each of these steps is, 0 to 1."""

_MOST_ROUNDS = 2000
"""Rounds for which they are drawn, evenly spaced: for all of a long journal they take gigabytes."""

_REACH = 8
"""Curves go on to so many times the largest batch size that a rank had."""


@dataclass(frozen=True, kw_only=True)
class KnownCommunication(Communication):
    """What a step was measured to take beyond the ranks' own work.

    Attributes:
        overlap_ms: Of all buckets but the last, which can go on during the backward pass.
        last_ms: Of the last one, and what else follows.
        parts_are_known: Whether the ranks of the job knew the two apart.
    """

    overlap_ms: float = 0.0
    last_ms: float = 0.0
    parts_are_known: bool = False

    @property
    def is_split(self) -> bool:
        """Whether ranks know its parts and their first bucket."""
        return self.parts_are_known

    def seconds(self, size: int) -> tuple[float, float]:
        """What was measured, among however many ranks."""
        return self.overlap_ms / 1000, self.last_ms / 1000


@dataclass(frozen=True)
class Replay:
    """The scenario of a job.

    Attributes:
        rounds: What it is made from.
        scenario: To be run with any strategy.
        paces: Of each rank by round, 1 where it is usual.
        low: Least batch size that each rank had, shape `[size]`.
        high: Largest one, shape `[size]`.
    """

    rounds: JobRounds
    scenario: Scenario
    paces: PaceByRound
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def beyond(self, batch_sizes: NDArray[np.int64]) -> tuple[int, float]:
        """The rank that a plan takes farthest from what was measured, and how far: 2 is twice."""
        ratios = np.maximum(batch_sizes / self.high, self.low / np.maximum(batch_sizes, 1))
        rank = int(np.argmax(ratios))
        return rank, max(float(ratios[rank]), 1.0)


def replay_of(rounds: JobRounds, **given: Any) -> Replay:
    """Finds curves, paces, noise and communication in the rounds of a job.

    Args:
        rounds: What its journal says.
        given: Fields of the scenario that are to be others than the default.

    Raises:
        ValueError: If a rank has no round with a usable time.
    """
    usable = (rounds.batch_sizes > 0) & (rounds.busy_seconds > 0)
    silent = np.flatnonzero(~usable.any(axis=0))
    if silent.size:
        raise ValueError(
            f"rank {int(silent[0])} has no usable busy_seconds in any of the {len(usable)} rounds; "
            f"expected one at least. Let the job run for longer."
        )
    steps, size = rounds.lengths.astype(np.float64), usable.shape[1]
    jitter = _jitter_of_steps(rounds, usable)
    seconds = _usual_seconds(rounds, usable, jitter)
    curves, usual = _curves(rounds, usable, seconds)
    jitter = _jitter_of_rounds(rounds, usual, usable) if jitter is None else jitter
    paces = PaceByRound(
        ends=rounds.ends,
        factors=usual * np.where(usable, rounds.busy_seconds / seconds, 1.0),
        usual=usual,
        loads=np.clip(np.nan_to_num(rounds.cpu_load), 0.0, 1.0),
    )
    jitter, first, communication = _communication(rounds, usable, jitter, paces)
    blurred = np.maximum(_SURE * jitter / np.sqrt(steps), _LEAST_PACE)[:, np.newaxis]
    by_noise = np.where(np.abs(np.log(usual)) < blurred, usual, 1.0)
    paces = replace(paces, factors=paces.factors / by_noise, usual=usual / by_noise)
    had = np.where(usable, rounds.batch_sizes, np.nan)
    scenario = Scenario(
        **{
            "name": rounds.name,
            "global_batch_size": rounds.global_batch_size,
            "ranks": tuple(
                MeasuredRanks(device=str(rank), forward_fraction=first[rank])
                for rank in range(size)
            ),
            "steps": int(rounds.ends[-1]),
            "steps_per_epoch": rounds.steps_per_epoch,
            "steps_ahead": _steps_ahead(rounds),
            "noise": Noise(jitter=jitter),
            "host_load": _host_load(rounds),
            "communication": communication,
            "disturbances": (paces,),
            "measured": tables_of(curves, rounds.global_batch_size),
            **given,
        }
    )
    return Replay(rounds, scenario, paces, np.nanmin(had, axis=0), np.nanmax(had, axis=0))


def _curves(
    rounds: JobRounds, usable: NDArray[np.bool_], seconds: NDArray[np.float64]
) -> tuple[list[FittedCurve], NDArray[np.float64]]:
    """Each rank's curve, and these seconds over it, 1 where unknown, shape `[rounds, size]`."""
    curves = [
        fit_curve(rounds.batch_sizes[known, rank], seconds[known, rank], rounds.lengths[known])
        for rank, known in enumerate(usable.T)
    ]
    expected = np.stack(
        [curve.at(rounds.batch_sizes[:, rank]) for rank, curve in enumerate(curves)], axis=1
    )
    return curves, np.where(usable, seconds / np.where(usable, expected, 1.0), 1.0)


def _usual_seconds(
    rounds: JobRounds, usable: NDArray[np.bool_], jitter: float | None
) -> NDArray[np.float64]:
    """Busy seconds, where some steps of a round took longer than noise makes them without these."""
    if jitter is None:
        return rounds.busy_seconds
    steps = rounds.lengths.astype(np.float64)[:, np.newaxis]
    below = jitter * below_mean(steps, QUARTILE)
    shorter = rounds.quartile_seconds * np.exp(below)
    apart = np.log(rounds.busy_seconds / np.where(usable & (shorter > 0), shorter, np.nan))
    is_apart = apart > np.maximum(np.maximum(_SURE * jitter / np.sqrt(steps), _LEAST_PACE), below)
    return np.where(is_apart, shorter, rounds.busy_seconds)


def tables_of(
    curves: Sequence[FittedCurve], global_batch_size: int
) -> dict[tuple[str | None, str], MeasuredCurve]:
    """Each rank's curve as a scenario's `measured` has it."""
    return {
        (None, str(rank)): _table(curve, global_batch_size) for rank, curve in enumerate(curves)
    }


def _table(curve: FittedCurve, global_batch_size: int) -> MeasuredCurve:
    most = min(global_batch_size, _REACH * math.ceil(curve.visited[-1]))
    return MeasuredCurve(1, curve.at(np.arange(1.0, most + 1)))


def _steps_ahead(rounds: JobRounds) -> int:
    """From a decision to its plan: a step for the exchange, and those that were prepared."""
    known = rounds.steps_ahead[rounds.steps_ahead > 0]
    return 1 + round(float(np.median(known))) if known.size else STEPS_AHEAD


def _host_load(rounds: JobRounds) -> HostLoad | None:
    """The job's loads are known by round, noise and idle load included."""
    return HostLoad(idle_load=0, load_noise=0) if np.isfinite(rounds.cpu_load).any() else None


def _jitter_of_steps(rounds: JobRounds, usable: NDArray[np.bool_]) -> float | None:
    """Deviation of a single step, by how far the lower quartile of a round is below the mean."""
    steps = rounds.lengths.astype(np.float64)
    seen = usable & (rounds.quartile_seconds > 0) & (steps >= 2)[:, np.newaxis]
    if seen.sum() < _LEAST_PAIRS:
        return None
    below = below_mean(np.maximum(steps, 2), QUARTILE)[:, np.newaxis]
    apart = (np.log(rounds.busy_seconds / rounds.quartile_seconds) / below)[seen]
    return float(np.clip(np.median(apart), 0.0, _MOST_JITTER))


def _jitter_of_rounds(
    rounds: JobRounds, paces: NDArray[np.float64], usable: NDArray[np.bool_]
) -> float:
    """The same by how rounds one after the other differ, where quartiles are not known.

    Among long ones, that is more the pace that wanders than the noise.
    """
    steps = rounds.lengths.astype(np.float64)
    both = usable[1:] & usable[:-1]
    scale = np.sqrt(1 / steps[1:] + 1 / steps[:-1])[:, np.newaxis]
    apart = (np.abs(np.diff(np.log(paces), axis=0)) / scale)[both]
    if apart.size < _LEAST_PAIRS:
        return Noise.jitter
    return float(min(np.median(apart) / 0.6745, _MOST_JITTER))  # Of a normal distribution.


def _communication(
    rounds: JobRounds, usable: NDArray[np.bool_], jitter: float, paces: PaceByRound
) -> tuple[float, list[float], KnownCommunication]:
    """Noise, part of each rank's work until its first bucket is ready, and what follows the work.

    In a noisy step another rank is the last one each time: that too makes it longer than the
    longest mean. If noise alone would explain more than there is, rounds differ for another reason,
    and the noise is less.
    """
    ratio = rounds.first_bucket_seconds / np.where(usable, rounds.busy_seconds, np.nan)
    known = np.isfinite(ratio).any(axis=0).all() and np.isfinite(rounds.overlap_seconds).any()
    overlap, first = 0.0, np.full(usable.shape[1], 1 / 3)
    if known:
        overlap = float(np.nanmedian(rounds.overlap_seconds))
        first = np.clip(np.nanmedian(ratio, axis=0), 0.0, 1.0)
    some = slice(None, None, math.ceil(len(usable) / _MOST_ROUNDS))
    usual = (np.where(usable, rounds.busy_seconds, 0.0) * paces.usual / paces.factors)[some]
    slow_steps, slower = (column[some] for column in paces.slow_steps())
    is_slow = 1 - slow_steps / paces.lengths[some, np.newaxis] < _WITHIN
    slow, step_seconds = usual * slower, rounds.step_seconds[some]
    noise = np.random.default_rng(0).standard_normal((_DRAWS // 2, 1, usable.shape[1]))
    noise = np.concatenate([noise, -noise])  # Of one rank, their mean is nothing.
    seen = step_seconds[np.isfinite(step_seconds)]
    least = -_EXPLAINED * float(np.median(seen)) if seen.size else 0.0

    def beyond(jitter: float) -> float:
        drawn = np.where(is_slow, slow, usual)  # The largest array here: there is no second one.
        drawn *= np.exp(jitter * noise)
        ready = drawn.max(axis=2)
        if known:
            ready = np.maximum(ready, (drawn * first).max(axis=2) + overlap)
        return float(np.nanmedian(step_seconds - ready.mean(axis=0))) if seen.size else 0.0

    while jitter > 0 and (last := beyond(jitter)) < least:
        jitter = 0.8 * jitter if jitter > _LEAST_JITTER else 0.0
    if not jitter:
        last = beyond(0.0)
    communication = KnownCommunication(
        gamma=0.0,
        overlap_ms=1000 * overlap,
        last_ms=1000 * max(last, 0.0),
        parts_are_known=bool(known),
    )
    return jitter, first.tolist(), communication
