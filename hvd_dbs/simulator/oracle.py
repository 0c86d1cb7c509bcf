"""The best plan there is, for curves that are known exactly.

Written without the solvers of the package, since it judges them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Bounds
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.rank_curves import RankCurves
from hvd_dbs.simulator.subset_sum import give_back
from hvd_dbs.simulator.timeline import Segment

_CLOSE = 1e-12
"""Relative distance of two step times that are taken to be the same."""


@dataclass(frozen=True)
class Best:
    """The oracle's answer.

    Attributes:
        seconds: The shortest step there is.
        batch_sizes: A plan that reaches it, shape `[size]`; 0 for ranks that are absent.
    """

    seconds: float
    batch_sizes: NDArray[np.int64]


class Oracle:
    """Finds the integer plan with the shortest step, whatever the shape of the curves.

    The least threshold T is searched for which every rank has an allowed batch size that it
    finishes within T, and the largest of these sum to B at least. Then the surplus is given
    back while every rank stays within T. On curves with holes (16 samples fit within T, 15 do
    not) this may be impossible; then T moves to the next time that any rank's curve takes.

    Args:
        curves: Undisturbed curves.
        bounds: Allowed batch sizes of all ranks.
        global_batch_size: Their sum.
    """

    def __init__(self, curves: RankCurves, bounds: Bounds, global_batch_size: int) -> None:
        self._curves = curves
        self._unit = bounds.multiple_of
        self._total = global_batch_size // self._unit
        self._low, self._high = bounds.in_units(global_batch_size)
        self._groups = _table_groups(curves, self._low, self._high, self._unit)
        self._last = 0.0

    def best(self, segment: Segment, rule: StepRule) -> Best:
        """The best plan while nothing changes.

        Raises:
            ValueError: If no plan within the bounds has the sum.
        """
        low = np.where(segment.present, self._low, 0)
        high = np.where(segment.present, self._high, 0)
        if not low.sum() <= self._total <= high.sum():
            raise ValueError(
                f"the ranks present can take {low.sum() * self._unit} to "
                f"{high.sum() * self._unit} samples a step; expected a range with "
                f"global_batch_size={self._total * self._unit}. Change the bounds."
            )
        threshold = self._least_threshold(segment, rule, *self._bracket(segment, rule))
        while True:
            caps = self._caps(segment, rule, threshold)
            units = give_back(caps, self._total, low, self._holes(segment, rule, threshold))
            if units is not None:
                self._last = self.seconds(units * self._unit, segment, rule)
                return Best(self._last, units * self._unit)
            threshold = self._next_time(segment, rule, threshold)

    def seconds(self, batch_sizes: NDArray[np.int64], segment: Segment, rule: StepRule) -> float:
        """Seconds of a step with a plan, shape `[size]`, without noise."""
        return float(rule.seconds(*rank_seconds(self._curves, batch_sizes, segment)))

    def _own_seconds(
        self, units: NDArray[np.int64], segment: Segment, rule: StepRule
    ) -> NDArray[np.float64]:
        """Seconds that a step takes for the sake of each rank alone, shape `[size]`."""
        busy, first = rank_seconds(self._curves, units * self._unit, segment)
        if rule.overlap_seconds > 0:
            busy = np.maximum(busy, first + rule.overlap_seconds)
        return np.asarray(busy + rule.last_seconds, dtype=np.float64)

    def _limits(self, segment: Segment, rule: StepRule, threshold: float) -> NDArray[np.float64]:
        """Undisturbed compute seconds with which each rank makes a step of `threshold`."""
        ready = (threshold * (1 + _CLOSE) - rule.last_seconds - segment.extra) / segment.factor
        if rule.overlap_seconds > 0:
            ratio, shift = self._curves.first
            first = ready - rule.overlap_seconds / segment.factor
            with np.errstate(divide="ignore", invalid="ignore"):
                by_first = np.where(
                    ratio > 0, (first - shift) / ratio, np.where(first >= shift, np.inf, -np.inf)
                )
            ready = np.minimum(ready, by_first)
        return np.asarray(ready, dtype=np.float64)

    def _caps(self, segment: Segment, rule: StepRule, threshold: float) -> NDArray[np.int64]:
        """The most units of each rank within the threshold; -1 where none; 0 if absent."""
        curves, limits = self._curves, self._limits(segment, rule, threshold)
        with np.errstate(divide="ignore", invalid="ignore"):
            samples = (limits - curves.fixed) / curves.per_sample
        fits = samples >= np.maximum(curves.saturation, self._low * self._unit)
        samples = np.where(fits, np.minimum(samples, self._high * self._unit), 0.0)
        units = np.where(fits, samples // self._unit, -1.0)
        units[curves.row >= 0] = -1.0
        caps = units.astype(np.int64)
        for group in self._groups:
            found = np.searchsorted(group.reach, limits[group.ranks] / group.scale, side="right")
            caps[group.ranks] = np.where(found > 0, found - 1 + group.low, -1)
        return np.where(segment.present, caps, 0)

    def _enough(self, segment: Segment, rule: StepRule, threshold: float) -> bool:
        caps = self._caps(segment, rule, threshold)
        return bool(caps.min() >= 0 and caps.sum() >= self._total)

    def _bracket(self, segment: Segment, rule: StepRule) -> tuple[float, float]:
        """A threshold that is too low and one that is high enough, near the last answer."""
        least, most = 0.0, self._last or 1e-6
        growth = 1.001
        while not self._enough(segment, rule, most):
            least, most, growth = most, most * growth, min(growth**3, 16.0)
        for factor in (0.999, 0.98, 0.9, 0.5) if least == 0 else ():
            if not self._enough(segment, rule, most * factor):
                return most * factor, most
            most *= factor
        return least, most

    def _least_threshold(
        self, segment: Segment, rule: StepRule, least: float, most: float
    ) -> float:
        """The least threshold above `least` with caps enough: a time that some curve takes."""
        while most - least > _CLOSE * most:
            low, high = (self._caps(segment, rule, end) for end in (least, most))
            if np.all(low >= 0) and high.sum() - low.sum() <= 2 * len(low):
                return self._finish(segment, rule, (low, high), least)
            middle = (least + most) / 2
            if self._enough(segment, rule, middle):
                most = middle
            else:
                least = middle
        return most

    def _finish(
        self,
        segment: Segment,
        rule: StepRule,
        caps: tuple[NDArray[np.int64], NDArray[np.int64]],
        least: float,
    ) -> float:
        """The least threshold above `least`, between caps below and above it that are close."""
        units, high = caps
        times: list[NDArray[np.float64]] = []
        while np.any(units < high):
            moving = units < high
            units = np.where(moving, units + 1, units)
            times.append(self._own_seconds(units, segment, rule)[moving])
        candidates = np.unique(np.concatenate(times))
        candidates = candidates[candidates > least * (1 + _CLOSE)]
        left, right = 0, len(candidates) - 1
        while left < right:
            middle = (left + right) // 2
            if self._enough(segment, rule, float(candidates[middle])):
                right = middle
            else:
                left = middle + 1
        return float(candidates[left])

    def _holes(
        self, segment: Segment, rule: StepRule, threshold: float
    ) -> dict[int, NDArray[np.int64]]:
        """Units within the threshold, of the ranks whose curves are tables."""
        limits = self._limits(segment, rule, threshold)
        holes: dict[int, NDArray[np.int64]] = {}
        for group in self._groups:
            for rank, scale in zip(group.ranks, group.scale, strict=True):
                if segment.present[rank]:
                    within = group.seconds <= limits[rank] / scale
                    holes[int(rank)] = np.flatnonzero(within) + group.low
        return holes

    def _next_time(self, segment: Segment, rule: StepRule, threshold: float) -> float:
        """The next larger time that any rank's curve takes; caps, which never fall, stay enough."""
        beyond = np.inf
        for units in range(int(self._low.min()), int(self._high.max()) + 1):
            allowed = (units >= self._low) & (units <= self._high) & segment.present
            if np.any(allowed):
                times = self._own_seconds(np.clip(units, self._low, self._high), segment, rule)
                larger = allowed & (times > threshold * (1 + _CLOSE))
                beyond = min(beyond, float(times[larger].min(initial=np.inf)))
        if np.isinf(beyond):
            raise ValueError(
                f"no plan with global_batch_size={self._total * self._unit} within the bounds."
            )
        return beyond


def rank_seconds(
    curves: RankCurves, batch_sizes: NDArray[np.int64], segment: Segment
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds until the gradients and until the first bucket are ready, without noise.

    Returns:
        Two arrays of shape `[size]`; 0 for absent ranks.
    """
    compute = curves.seconds(batch_sizes)
    first = curves.first_seconds(compute)
    extra = segment.extra
    if not segment.present.all():
        compute, first, extra = (
            np.where(segment.present, values, 0.0) for values in (compute, first, extra)
        )
    return compute * segment.factor + extra, first * segment.factor + extra


@dataclass(frozen=True)
class _TableGroup:
    """Ranks with one table and the same bounds.

    Attributes:
        ranks: Which, shape `[ranks]`.
        scale: Their factors, shape `[ranks]`.
        low: Units of the first entry of the next two.
        seconds: Table at each allowed number of units, shape `[units]`.
        reach: The least of it from each entry on, shape `[units]`: never falls.
    """

    ranks: NDArray[np.int64]
    scale: NDArray[np.float64]
    low: int
    seconds: NDArray[np.float64]
    reach: NDArray[np.float64]


def _table_groups(
    curves: RankCurves, low: NDArray[np.int64], high: NDArray[np.int64], unit: int
) -> list[_TableGroup]:
    keys = np.stack([curves.row, low, high], axis=1)
    groups = []
    for key in np.unique(keys[curves.row >= 0], axis=0):
        ranks = np.flatnonzero(np.all(keys == key, axis=1))
        seconds = curves.table[key[0], np.arange(key[1], key[2] + 1) * unit]
        reach = np.minimum.accumulate(seconds[::-1])[::-1]
        groups.append(_TableGroup(ranks, curves.scale[ranks], int(key[1]), seconds, reach))
    return groups
