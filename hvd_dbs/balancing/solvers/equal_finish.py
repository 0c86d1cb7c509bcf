"""The plan with the shortest step that the ranks' own time curves allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid, TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.solvers.surplus import give_back, reach_sum

_MOST_ATTEMPTS = 100
_NEAR = 0.95, 1.05
"""Parts of the step that the ranks' speeds promise, between which it is sought first: where plans
are good already, speeds change by less. It is sought beyond these where it is not there."""
_NEAR_AN_END, _BEYOND = 0.1, 3
"""A zero within that part of a bracket is near an end. Aimed at, it would move that end alone, over
and over; so many times as far from the end, the other one moves."""
_TINY = 1e-30  # No divisor is less.
_ACCURACY = 4e-9
"""Part of the shortest step; curves count a unit as done when a part of 1e-9 of it is missing."""
_TO_THE_LEAST = 4096
"""Batches of up to so many units are searched to the end where curves have holes."""


@dataclass(frozen=True)
class EqualFinish:
    """Water-filling: min over plans of max_i t_i(b_i), for curves of any shape.

    cap_i(T) = max {b within the bounds: t_i(b) <= T} never falls as T grows, so the smallest T
    with sum(cap_i(T)) >= B is found by closing in on it; what is too much is given back while
    every rank stays on a point with t_i <= T. For lines without bounds this is the closed form
    T = (B + sum(a_i/c_i)) / sum(1/c_i), b_i = (T - a_i)/c_i, up to rounding.

    References:
        Nie, Maghakian, Liu, "Cannikin", 2024, arXiv 2402.05302, for the overlap-aware form.
    """

    def init(self) -> SolverState:
        """No memory."""
        return {}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan with the shortest step."""
        return Proposal(equal_finish(problem, curves)), state


def equal_finish(problem: Problem, curves: TimeCurves) -> Plan:
    """The plan with the shortest step by these curves.

    If no plan is faster than the one in force, it may be another one that is as fast.

    Args:
        problem: The sum, the bounds, the plan in force.
        curves: Seconds by rank, all of them known.

    Example:
        >>> from hvd_dbs.balancing.bounds import Bounds
        >>> from hvd_dbs.balancing.curves import AffineCurves
        >>> curves = AffineCurves(fixed=np.array([0.0, 1.0]), per_sample=np.array([1.0, 2.0]))
        >>> problem = Problem(31, Bounds.of(2), Plan((16, 15)))
        >>> equal_finish(problem, curves).batch_sizes
        (21, 10)
    """
    plan = _allowed(problem)
    return plan_within(problem, curves, float(np.max(curves.seconds(plan.samples)))) or plan


def plan_within(problem: Problem, curves: TimeCurves, deadline: float) -> Plan | None:
    """The plan with the shortest step, if a step can be as short as the deadline.

    A rank that cannot do its fewest samples any sooner sets the length of the step. The others
    share what is left and finish together, earlier than that.

    Args:
        problem: The sum, the bounds, the plan in force.
        curves: Seconds by rank, all of them known.
        deadline: Seconds that a step may take at most.

    Returns:
        The plan; None where the ranks cannot do the global batch by the deadline, or, on curves
        with holes, no plan with that sum was found.
    """
    unit = problem.bounds.multiple_of
    grid = Grid(*problem.bounds.in_units(problem.global_batch_size), unit)
    total = problem.global_batch_size // unit
    likely = _likely(problem, curves, deadline)
    bracket = _closed(curves, grid, total, deadline, likely)
    if bracket is None:
        return None
    caps, together = bracket.caps(), bracket.deadline
    late = _late(curves, grid, caps, (together, deadline))
    if late.size:
        soonest = _closed(curves.take(late), grid.take(late), 0, deadline, likely, is_strict=True)
        if soonest is None:
            return None
        caps[late], together = soonest.caps(), max(soonest.deadline, together)
    found = give_back(curves, grid, caps, total, together)
    if found is None and total <= _TO_THE_LEAST:
        found = reach_sum(curves, grid, total, (bracket.low, deadline))
    return None if found is None else Plan.of(found * unit)


def _likely(problem: Problem, curves: TimeCurves, deadline: float) -> tuple[float, float]:
    """Where to look first: around the step of ranks that keep their speeds and finish together."""
    samples = problem.current.samples
    speeds = samples / np.maximum(curves.seconds(samples), _TINY)
    together = problem.global_batch_size / max(float(np.sum(speeds)), _TINY)
    near, far = _NEAR
    return near * min(together, deadline), min(far * together, deadline)


def _closed(
    curves: TimeCurves,
    grid: Grid,
    total: int,
    deadline: float,
    likely: tuple[float, float],
    is_strict: bool = False,
) -> _Bracket | None:
    """The closed bracket of the shortest deadline; None where the one given is too short."""
    near, far = likely
    bracket = _Bracket(curves, grid, total, (near, far), is_strict)
    if not bracket.is_reached and far < deadline:
        near, far = far, deadline
        bracket = _Bracket(curves, grid, total, (near, far), is_strict)
    if not bracket.is_reached:
        return None
    if bracket.is_passed:
        bracket = _Bracket(curves, grid, total, (0.0, near), is_strict)
    bracket.close()
    return bracket


def _late(
    curves: TimeCurves, grid: Grid, caps: NDArray[np.int64], deadlines: tuple[float, float]
) -> NDArray[np.intp]:
    """The ranks that are late with their fewest samples, if the last one need not or may not be.

    It need not be where its curve falls, as saw-teeth do.

    Args:
        curves: Seconds by rank.
        grid: Allowed units.
        caps: Most units by rank that meet the first deadline, or the fewest, shape `[size]`.
        deadlines: Of the others, and what a step may take at most.
    """
    together, longest = deadlines
    few = np.flatnonzero(caps == grid.low)
    if not few.size:
        return few
    fewest = curves.take(few).seconds(grid.low[few].astype(np.float64) * grid.multiple_of)
    late = few[fewest > together]
    if late.size and (latest := float(np.max(fewest))) <= longest:
        last = few[[np.argmax(fewest)]]
        sooner = curves.take(last).units_within(latest * (1 - _ACCURACY), grid.take(last))
        if sooner[0] < grid.low[last[0]]:
            return last[:0]
    return late


def _allowed(problem: Problem) -> Plan:
    """The plan in force, or the one nearest to it within the bounds."""
    unit = problem.bounds.multiple_of
    low, high = problem.bounds.in_units(problem.global_batch_size)
    current = problem.current.samples
    units = np.clip(np.floor(current / unit), low, high).astype(np.int64)  # Faster than //.
    if units.sum() * unit == problem.global_batch_size:
        is_current = np.array_equal(units * unit, current)  # Whose seconds are known already.
        return problem.current if is_current else Plan.of(units * unit)
    return problem.apportion(np.maximum(units, 1))


class _Bracket:
    """The smallest deadline that all samples can meet: above `low`, at most `deadline`.

    Ranks may do their fewest samples later than that, unless it `is_strict`.
    """

    def __init__(
        self,
        curves: TimeCurves,
        grid: Grid,
        total: int,
        deadlines: tuple[float, float],
        is_strict: bool = False,
    ) -> None:
        self.low, self.deadline = deadlines
        self._whole, self._curves = curves, curves.narrow(self.low, self.deadline, grid)
        self._grid, self._total = grid, total
        self._rows = np.arange(grid.low.size)
        self._least = grid.low - 1 if is_strict else grid.low
        self._caps_low = self._within(self.low) if self.low > 0 else self._least
        self._caps = self._within(self.deadline)
        self._result = self._caps.copy()

    def caps(self) -> NDArray[np.int64]:
        """Most units by rank at the deadline, shape `[size]`."""
        self._result[self._rows] = self._caps
        return self._result

    @property
    def is_reached(self) -> bool:
        """Whether the longer deadline is long enough."""
        return self._suffice(self._caps)

    @property
    def is_passed(self) -> bool:
        """Whether the shorter deadline is long enough already."""
        return self._suffice(self._caps_low)

    def close(self) -> None:
        """Narrows until one unit of each rank is in between, or the deadline is known that well."""
        settled = 0
        for attempt in range(_MOST_ATTEMPTS):
            above = settled + int(self._caps.sum()) - self._total
            if above <= 0 or self.deadline - self.low <= _ACCURACY * self.deadline:
                break
            gaps = self._caps - np.maximum(self._caps_low, self._least)
            if np.max(gaps) == 1:
                self._end(np.flatnonzero(gaps), above)
                break
            below = settled + int(np.maximum(self._caps_low, 0).sum()) - self._total
            deadline = self._between(attempt, below, above)
            caps = self._within(deadline)
            # Ranks that are settled meet every deadline that is left.
            if self._suffice(caps, settled):
                self.deadline, self._caps = deadline, caps
            else:
                self.low, self._caps_low = deadline, caps
            moving = np.flatnonzero(self._caps != self._caps_low)
            if 2 * moving.size < self._rows.size:
                self.caps()
                self._rows, self._caps = self._rows[moving], self._caps[moving]
                self._caps_low, self._least = self._caps_low[moving], self._least[moving]
                self._curves, self._grid = self._curves.take(moving), self._grid.take(moving)
                settled = int(self._result.sum()) - int(self._caps.sum())

    def _within(self, deadline: float) -> NDArray[np.int64]:
        return np.maximum(self._curves.units_within(deadline, self._grid), self._least)

    def _between(self, attempt: int, below: int, above: int) -> float:
        """The deadline to try next, given how many units the two are below and above the sum."""
        if below >= 0:  # Some rank has yet to finish its fewest samples, and sets the deadline.
            late = np.flatnonzero(np.maximum(self._caps_low, self._least) < self._grid.low)
            latest = float(np.max(self._seconds(late, self._grid.low), initial=0.0))
            if self.low < latest <= self.deadline:
                return min(latest, self.deadline * (1 - _ACCURACY / 2))
        # The sum of caps is nearly a line: aim at its zero, and halve now and then.
        part = -below / (above - below) if attempt % 3 < 2 and below < 0 else 0.5
        if part < _NEAR_AN_END:
            part *= _BEYOND
        elif part > 1 - _NEAR_AN_END:
            part = 1 - _BEYOND * (1 - part)
        return self.low + min(max(part, 0.02), 0.98) * (self.deadline - self.low)

    def _seconds(self, moving: NDArray[np.intp], units: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of some of the ranks that are not settled, with their units of all of these."""
        batch_sizes = units[moving].astype(np.float64) * self._grid.multiple_of
        return self._whole.take(self._rows[moving]).seconds(batch_sizes)

    def _end(self, moving: NDArray[np.intp], above: int) -> None:
        """Takes the deadline at which enough ranks, `above` less than all, do one more unit."""
        seconds = self._seconds(moving, self._caps)
        is_needed = self._caps_low[moving] < self._grid.low[moving]
        deadline = float(np.max(seconds, where=is_needed, initial=self.low))
        needed = moving.size - above
        if needed > 0:
            deadline = max(deadline, float(np.partition(seconds, needed - 1)[needed - 1]))
        self.deadline = deadline * (1 + _ACCURACY)
        self._caps[moving] -= seconds > self.deadline

    def _suffice(self, caps: NDArray[np.int64], settled: int = 0) -> bool:
        """Whether each rank has its fewest units at least, and all together have enough."""
        is_allowed = bool(np.all(caps >= self._grid.low))
        return is_allowed and settled + int(caps.sum()) >= self._total
