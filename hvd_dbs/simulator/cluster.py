"""The modelled cluster: plays the steps of a round and measures what a job would measure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Measurement
from hvd_dbs.simulator.conditions import Conditions, step_rule
from hvd_dbs.simulator.oracle import rank_seconds
from hvd_dbs.simulator.round_means import typical_by_rank

_STRIDE = 2**32
"""Counters that the readings of one step may use."""


@dataclass(frozen=True)
class Round:
    """Steps that were played with one plan.

    Attributes:
        true_seconds: Seconds of each step without noise and pauses, shape `[steps]`.
        clock_seconds: Seconds of each step with both, shape `[steps]`.
        measurement: One row for each rank that is present.
    """

    true_seconds: NDArray[np.float64]
    clock_seconds: NDArray[np.float64]
    measurement: Measurement


class Cluster:
    """Plays one run from its first step to its last.

    Noise belongs to the step and the rank, not to the strategy or its rounds: all strategies
    meet the same.

    Args:
        conditions: The scenario, drawn.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        scenario = conditions.scenario
        self._noise, self._size = scenario.noise, scenario.size
        self._timeline = conditions.timeline()
        jitter, outliers, readings = np.random.SeedSequence([scenario.seed, 1]).spawn(3)
        self._jitter = np.random.Generator(np.random.SFC64(jitter))
        self._outliers = np.random.Generator(np.random.SFC64(outliers))
        self._readings_key = readings.generate_state(2, np.uint64)
        self.step = 0

    @property
    def present(self) -> NDArray[np.int64]:
        """The ranks that are part of the job in the coming step."""
        return np.flatnonzero(self._timeline.segment(self.step).present)

    def next_resize(self) -> int:
        """The first step after the coming one at which ranks leave or join; else the end."""
        resizes = self._timeline.resizes
        index = int(np.searchsorted(resizes, self.step, side="right"))
        return int(resizes[index]) if index < len(resizes) else self._conditions.scenario.steps

    def play(self, batch_sizes: NDArray[np.int64], stop: int, switched: bool) -> Round:
        """Plays the steps up to `stop` with one plan; nobody leaves or joins before.

        Args:
            batch_sizes: The plan, 0 for absent ranks, shape `[size]`.
            stop: First step not to be played.
            switched: Whether the plan is a new one, which costs the first step something.
        """
        start, scenario = self.step, self._conditions.scenario
        busy = self._draw(stop - start)
        factors_first = busy.copy() if scenario.communication.gradient_megabytes else busy
        true_seconds = np.empty(stop - start)
        while self.step < stop:
            segment = self._timeline.segment(self.step)
            rule = step_rule(scenario, int(segment.present.sum()))
            end = min(stop, segment.stop)
            steps = slice(self.step - start, end - start)
            seconds, first = rank_seconds(self._conditions.curves, batch_sizes, segment)
            true_seconds[steps] = rule.seconds(seconds, first)
            busy[steps] *= seconds
            if factors_first is not busy:
                factors_first[steps] *= first
            self.step = end
        steps_paused, ranks_paused, pauses = self._timeline.pauses(start, stop)
        np.add.at(busy, (steps_paused, ranks_paused), pauses)
        if factors_first is not busy:
            np.add.at(factors_first, (steps_paused, ranks_paused), pauses)
        if switched:
            busy[0] += scenario.switch_ms / 1000
            true_seconds[0] += scenario.switch_ms / 1000
        clock_seconds = rule.seconds(busy, factors_first)
        present = np.flatnonzero(segment.present)
        everybody = slice(None) if len(present) == self._size else present
        busy_seconds, num_steps = typical_by_rank(busy[:, everybody])
        columns = {"num_steps": num_steps} | self._loads(present)
        if factors_first is not busy:
            columns["first_bucket_seconds"] = typical_by_rank(factors_first[:, everybody])[0]
            columns["overlap_seconds"] = np.full(len(present), rule.overlap_seconds)
            columns["last_bucket_seconds"] = np.full(len(present), rule.last_seconds)
        measurement = Measurement.of(
            batch_sizes[everybody].astype(np.float64), busy_seconds, **columns
        )
        return Round(true_seconds, clock_seconds, measurement)

    def _draw(self, num_steps: int) -> NDArray[np.float64]:
        """Factors on the step times, shape `[steps, size]`."""
        shape = (num_steps, self._size)
        if self._noise.jitter > 0:
            factors = self._jitter.standard_normal(shape)
            factors *= self._noise.jitter
            factors += 1.0
            # One in a thousand draws at the largest jitter allowed, none at a usual one.
            np.maximum(factors, 0.1, out=factors)
        else:
            factors = np.ones(shape)
        if self._noise.outlier_chance > 0:
            hit = self._outliers.random(shape) < self._noise.outlier_chance
            factors[hit] *= self._noise.outlier_factor
        return factors

    def _loads(self, present: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """What the hosts show when the round has ended, so just before the coming step."""
        host_load = self._conditions.scenario.host_load
        if host_load is None:
            return {}
        loads = self._timeline.loads(self.step - 1)
        counter = self.step * _STRIDE
        random = np.random.Generator(np.random.Philox(key=self._readings_key, counter=counter))
        readings = host_load.load_noise * random.standard_normal((self._size, 2)) + loads
        readings += (host_load.idle_load, host_load.idle_memory)
        readings = np.clip(readings, 0.0, 1.0)[present]
        return {"cpu_load": readings[:, 0], "memory_load": readings[:, 1]}
