"""The modelled cluster: plays steps, and measures what the ranks of a job would measure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Measurement
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.conditions import Conditions, step_rule
from hvd_dbs.simulator.load_sampler import LoadSampler
from hvd_dbs.simulator.oracle import rank_seconds
from hvd_dbs.simulator.round_means import typical_by_rank


@dataclass(frozen=True)
class Played:
    """Steps that were played with one plan.

    Attributes:
        start: The first of them.
        batch_sizes: The plan, shape `[size]`.
        busy: Seconds until each rank's gradients were ready, shape `[steps, size]`.
        first: Seconds until its first bucket was, same shape; None without communication.
        rule: What the last of them takes, given these.
        true_seconds: Seconds of each step without noise and pauses, shape `[steps]`.
        clock_seconds: Seconds of each step with both, shape `[steps]`.
        is_first: Ranks of which the first of them is the first at a batch size, shape `[size]`.
    """

    start: int
    batch_sizes: NDArray[np.int64]
    busy: NDArray[np.float64]
    first: NDArray[np.float64] | None
    rule: StepRule
    true_seconds: NDArray[np.float64]
    clock_seconds: NDArray[np.float64]
    is_first: NDArray[np.bool_]


class Cluster:
    """Plays one run from its first step to its last.

    Noise belongs to the step and the rank, not to the strategy or its rounds: all strategies
    meet the same.

    Args:
        conditions: The scenario, drawn.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions, self._scenario = conditions, conditions.scenario
        scenario = conditions.scenario
        self._noise, self._size = scenario.noise, scenario.size
        self._timeline = conditions.timeline()
        jitter, outliers = np.random.SeedSequence([scenario.seed, 1]).spawn(2)
        self._jitter = np.random.Generator(np.random.SFC64(jitter))
        self._outliers = np.random.Generator(np.random.SFC64(outliers))
        self._sampler = _sampler(conditions)
        self._batch_sizes = np.zeros(self._size, dtype=np.int64)
        self._used: list[set[int]] = [set() for _ in range(self._size)]
        self.step = 0

    @property
    def present(self) -> NDArray[np.int64]:
        """The ranks that are part of the job in the coming step."""
        return np.flatnonzero(self._timeline.segment(self.step).present)

    def next_resize(self) -> int:
        """The first step after the coming one at which ranks leave or join; else the end."""
        resizes = self._timeline.resizes
        index = int(np.searchsorted(resizes, self.step, side="right"))
        return int(resizes[index]) if index < len(resizes) else self._scenario.steps

    def play(self, batch_sizes: NDArray[np.int64], stop: int) -> Played:
        """Plays the steps up to `stop` with one plan; nobody leaves or joins before.

        The first of them costs those ranks something whose batch size is a new one.

        Args:
            batch_sizes: The plan, 0 for absent ranks, shape `[size]`.
            stop: First step not to be played.
        """
        start, scenario = self.step, self._scenario
        busy = self._draw(stop - start)
        first = busy.copy() if scenario.communication.is_split else None
        true_seconds = np.empty(stop - start)
        is_first = self._note_use(batch_sizes)
        switch_seconds = np.where(is_first, scenario.switch_ms / 1000, 0.0)
        rules: list[tuple[slice, StepRule]] = []
        while self.step < stop:
            segment = self._timeline.segment(self.step)
            rule = step_rule(scenario, segment)
            end = min(stop, segment.stop)
            steps = slice(self.step - start, end - start)
            rules.append((steps, rule))
            rank_busy, rank_first = rank_seconds(self._conditions.curves, batch_sizes, segment)
            true_seconds[steps] = rule.seconds(rank_busy, rank_first)
            busy[steps] *= rank_busy
            if first is not None:
                first[steps] *= rank_first
            if self.step == start and switch_seconds.any():
                true_seconds[0] = rule.seconds(
                    rank_busy + switch_seconds, rank_first + switch_seconds
                )
            self.step = end
        step_indices, ranks, seconds = self._timeline.pauses(start, stop)
        for delayed in (busy,) if first is None else (busy, first):
            np.add.at(delayed, (step_indices, ranks), seconds)
            delayed[0] += switch_seconds
        clock_seconds = np.empty(stop - start)
        for steps, rule in rules:
            ready = busy if first is None else first
            clock_seconds[steps] = rule.seconds(busy[steps], ready[steps])
        if self._sampler is not None:
            self._sampler.advance(start, clock_seconds)
        whole = true_seconds, clock_seconds
        return Played(start, batch_sizes, busy, first, rule, *whole, is_first)

    def measure(self, pieces: Sequence[Played], unmeasured: int | None = None) -> Measurement:
        """What the ranks that are present measured in a round that is over now.

        As in a running job: the seconds of each rank at the batch size that it ran last, without
        the first two steps where that is another one than before, and the hosts' load at the
        round's end.

        Args:
            pieces: The round's steps, played with one plan after the other.
            unmeasured: Each so many steps, from step 0 on, one is not measured: the first of an
                epoch; None: all are.
        """
        last = pieces[-1]
        steps = np.concatenate([piece.start + np.arange(len(piece.busy)) for piece in pieces])
        measured = np.ones(len(steps), dtype=bool)
        if unmeasured is not None:
            measured = steps % unmeasured != 0
        kept = np.all([piece.batch_sizes == last.batch_sizes for piece in pieces], axis=0)
        present = np.flatnonzero(last.batch_sizes)
        columns: dict[str, NDArray[np.float64]] = {}
        busy = [piece.busy for piece in pieces]
        # A plan's steps may have been played in several pieces.
        last_pieces = list(_last_plan(pieces))
        num_last = sum(len(piece.busy) for piece in last_pieces)
        is_first = np.any([piece.is_first for piece in last_pieces], axis=0)
        kept &= ~is_first
        seconds = _typical(busy, measured, kept, num_last)
        names = "busy_seconds", "num_steps", "quartile_seconds", "median_seconds"
        columns |= zip(names, seconds, strict=True)
        if not measured[-num_last:][1:].any():
            columns["num_steps"][is_first] = 0.0
        if last.first is not None:
            first = [piece.first for piece in pieces if piece.first is not None]
            columns["first_bucket_seconds"] = _typical(first, measured, kept, num_last)[0]
            columns["overlap_seconds"] = np.full(self._size, last.rule.overlap_seconds)
            columns["last_bucket_seconds"] = np.full(self._size, last.rule.last_seconds)
        columns |= self._loads()
        columns["batch_sizes"] = last.batch_sizes.astype(np.float64)
        if len(present) < self._size:
            columns = {name: column[present] for name, column in columns.items()}
        batch_sizes, busy_seconds = columns.pop("batch_sizes"), columns.pop("busy_seconds")
        return Measurement.of(batch_sizes, busy_seconds, **columns)

    def _note_use(self, batch_sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Ranks that use a batch size for the first time, and not the first of all, `[size]`."""
        is_first = np.zeros(self._size, dtype=bool)
        for rank in np.flatnonzero(batch_sizes != self._batch_sizes).tolist():
            used, samples = self._used[rank], int(batch_sizes[rank])
            is_first[rank] = bool(used) and samples not in used
            used.add(samples)
        self._batch_sizes = batch_sizes
        return is_first

    def _draw(self, num_steps: int) -> NDArray[np.float64]:
        """Factors on the step times, shape `[steps, size]`."""
        shape = (num_steps, self._size)
        if self._noise.jitter > 0:
            factors = self._jitter.standard_normal(shape)
            factors *= self._noise.jitter
            np.exp(factors, out=factors)
        else:
            factors = np.ones(shape)
        if self._noise.outlier_chance > 0:
            hit = self._outliers.random(shape) < self._noise.outlier_chance
            factors[hit] *= self._noise.outlier_factor
        return factors

    def _loads(self) -> dict[str, NDArray[np.float64]]:
        """What is known of the hosts' load; shapes `[size]`."""
        host_load = self._scenario.host_load
        if self._sampler is None or host_load is None:
            return {}
        idle = (host_load.idle_load, host_load.idle_memory)
        readings = np.clip(self._sampler.latest + idle, 0.0, 1.0)
        return {"cpu_load": readings[:, 0], "memory_load": readings[:, 1]}


def _sampler(conditions: Conditions) -> LoadSampler | None:
    scenario = conditions.scenario
    if scenario.host_load is None:
        return None
    period, noise = scenario.load_period_ms / 1000, scenario.host_load.load_noise
    return LoadSampler(conditions.timeline(), scenario.size, period, noise, scenario.seed)


def _last_plan(pieces: Sequence[Played]) -> Iterator[Played]:
    """The pieces at the end that were played with one plan."""
    same = (np.array_equal(piece.batch_sizes, pieces[-1].batch_sizes) for piece in reversed(pieces))
    return itertools.compress(reversed(pieces), itertools.takewhile(bool, same))


def _typical(
    pieces: Sequence[NDArray[np.float64]],
    measured: NDArray[np.bool_],
    kept: NDArray[np.bool_],
    num_last: int,
) -> tuple[NDArray[np.float64], ...]:
    """What `typical_by_rank` says of the steps at the size that each rank ran last.

    Ranks that were not `kept` at one size began with it in the last `num_last` steps.
    """
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    found = typical_by_rank(whole, measured, warmup=0 if measured[0] else 2)
    new = np.flatnonzero(~kept)
    if new.size:
        columns = whole[-num_last:, new]
        for all_rows, rows in zip(
            found, typical_by_rank(columns, measured[-num_last:], warmup=2), strict=True
        ):
            all_rows[new] = rows
    return found
