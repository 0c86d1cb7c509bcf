"""Curves of all ranks with what is not known of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.point_curves import OfPlans, PointCurves, once_a_plan
from hvd_dbs.balancing.priors import PRIORS

_LARGEST_SHAPE = 100.0
"""Of the gamma distribution; no unit. Beyond it, and below its inverse, rates are all alike or
unrelated, as far as numbers of periods can show."""


@dataclass(frozen=True)
class SlowPeriods:
    """How ranks become slow now and then. All fields have shape `[size]`.

    Attributes:
        slower: Log seconds by which each is slower than at its baseline speed now.
        number: Slow periods that are over.
        sizes: Sum of the most that each was slower in them.
        quiet: Steps outside of slow periods.
    """

    slower: NDArray[np.float64]
    number: NDArray[np.float64]
    sizes: NDArray[np.float64]
    quiet: NDArray[np.float64]

    @property
    def begun(self) -> float:
        """Slow periods that have begun so far, of all ranks."""
        return float(self.number.sum() + np.count_nonzero(self.slower > PRIORS.slow))

    @cached_property
    def rates(self) -> NDArray[np.float64]:
        """Slow periods a step that begin, shape `[size]`.

        Rates of ranks are taken to have a gamma distribution, whose shape is learnt from how much
        more their numbers differ than by chance (moments).
        """
        mean = max(float(self.number.mean()), 1e-9)
        excess = max(float(self.number.var()) - mean, mean / _LARGEST_SHAPE)
        shape = min(max(mean**2 / excess, 1 / _LARGEST_SHAPE), _LARGEST_SHAPE)
        rates = (self.number + shape) / (self.quiet + shape * float(self.quiet.mean()) / mean)
        return np.where(self.slower > PRIORS.slow, 0.0, rates)

    @cached_property
    def further(self) -> NDArray[np.float64]:
        """Log seconds by which a rank would be slower than now in one more, shape `[size]`."""
        size = float(self.sizes.sum()) / max(float(self.number.sum()), 1.0)
        return np.maximum(size - self.slower, 0.0)


@dataclass(frozen=True)
class PosteriorCurves(PointCurves):
    """Straight lines through posterior means, and how sure they are.

    Attributes:
        variance: Of log seconds at the points, shape `[capacity, size]`.
        elasticity_sd: Of d log t / d log b beyond them, shape `[size]`.
        roughness: Deviation of what a batch size not visited adds, shape `[size]`.
        noise: Log seconds by which its single steps differ, by its rounds, shape `[size]`.
        rounds: Rounds by which that is known, shape `[size]`.
        first_seconds: By how much the first step at a batch size takes longer, shape `[size]`.
        life: Steps that its pace is expected to last, shape `[size]`.
        computing: D log t / d log busy time at the largest point, shape `[size]`: less than 1
            where communication sticks out.
        periods: Slow periods; their sizes are those of busy times.
    """

    variance: NDArray[np.float64]
    elasticity_sd: NDArray[np.float64]
    roughness: NDArray[np.float64]
    noise: NDArray[np.float64]
    rounds: NDArray[np.float64]
    first_seconds: NDArray[np.float64]
    life: NDArray[np.float64]
    computing: NDArray[np.float64]
    periods: SlowPeriods

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        return np.asarray(super().known & np.isfinite(self.variance[0]) & np.isfinite(self.noise))

    @property
    def further(self) -> NDArray[np.float64]:
        """Log seconds by which a step of a rank would take longer in one more slow period."""
        return self.periods.further * self.computing

    def deviations(
        self, batch_sizes: NDArray[np.float64], ranks: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Of log seconds at each rank's batch size; shapes `[size]`.

        Args:
            batch_sizes: One for each rank.
            ranks: For which ranks; None: all.
        """
        if ranks is not None:
            return self._deviations(batch_sizes, ranks)
        return once_a_plan(self._deviations, batch_sizes, self._deviations_of_plans)

    def _deviations(
        self, batch_sizes: NDArray[np.float64], ranks: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        some = slice(None) if ranks is None else ranks
        points, known = self.points[:, some], self.variance[:, some]
        b = np.maximum(batch_sizes[some], 1.0)
        above = np.sum(points <= b, axis=0, dtype=np.int16)
        point, variance = _pick(np.maximum(above - 1, 0), points, known)
        larger, of_larger = _pick(np.minimum(above, self._final[some]), points, known)
        is_larger = np.abs(larger - b) < np.abs(point - b)
        np.copyto(point, larger, where=is_larger)
        np.copyto(variance, of_larger, where=is_larger)
        distance = np.abs(point - b)
        new = np.flatnonzero(distance)
        b, roughness = b[new], self.roughness[some][new]
        tilt = np.log(b / point[new]) * self.elasticity_sd[some][new]
        variance[new] += new_roughness(b, distance[new]) * roughness**2 + tilt**2
        return np.asarray(np.sqrt(variance))

    def shifted(
        self,
        log_shift: NDArray[np.float64],
        removed: NDArray[np.float64] | float = 0.0,
    ) -> PosteriorCurves:
        """The curves of ranks that take longer, or are better known.

        Args:
            log_shift: Logarithms of the factors, shape `[size]`.
            removed: Variance that points no longer have, same shape.
        """
        if not np.any(removed) and not log_shift.any():
            return self  # With what it has computed already.
        factor = np.exp(log_shift)
        curves = replace(
            self,
            times=self.times * factor,
            slope=self.slope * factor,
            fixed=self.fixed * factor,
            variance=np.maximum(self.variance - removed, 0.0),
        )
        # What has been computed already.
        vars(curves).update(
            _final=self._final,
            _fastest=self._fastest * factor,
            _first_slope=self._first_slope * factor,
        )
        curves._seconds_of_plans.update(
            (plan, (b, seconds * factor)) for plan, (b, seconds) in self._seconds_of_plans.items()
        )
        return curves

    @cached_property
    def _deviations_of_plans(self) -> OfPlans:
        return {}

    def hopeful(self, sigmas: float, current: NDArray[np.float64]) -> PointCurves:
        """The curves if what is new were faster by so many deviations.

        New are the points that are known less well than the present batch sizes, and the tiles
        next to these. A sample more than a tile takes what the curves say.
        """
        stale = np.sqrt(np.maximum(self.variance - self.deviations(current) ** 2, 0.0))
        tiles = PRIORS.tile * (current // PRIORS.tile + np.array([[0.0], [1.0]]))
        new = np.vstack([tiles, tiles + 1])
        is_known = np.any(new[:, np.newaxis] == self.points, axis=1)
        new[is_known | (new <= 1)] = np.nan
        saved = np.vstack([tile_factor(tiles) * self.roughness, np.zeros(tiles.shape)])
        seconds = np.stack([self.seconds(b) for b in new])
        times = np.vstack([self.times, seconds]) * np.exp(-sigmas * np.vstack([stale, saved]))
        points = np.vstack([self.points, new])
        order = np.argsort(points, axis=0)  # NaN comes last.
        points, times = (np.take_along_axis(part, order, axis=0) for part in (points, times))
        return PointCurves(points, times, self.slope, self.fixed)


def _pick(
    place: NDArray[np.integer], *parts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Of each part, shape `[places, size]`, the value at each rank's place; shapes `[size]`."""
    flat = place.astype(np.intp) * place.size + np.arange(place.size)
    return tuple(part.ravel().take(flat) for part in parts)


def new_roughness(
    batch_sizes: NDArray[np.float64], distance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How uncertain it is what a batch size adds to a smooth curve, in parts of tau^2.

    Args:
        batch_sizes: In samples.
        distance: From the nearest batch size of which it is known, in samples, same shape.
    """
    unlike = -np.expm1(-4 * distance / PRIORS.tile)
    return unlike + np.where(distance > 0, filled_tile(batch_sizes), 0.0)


def filled_tile(batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """What filling the last tile adds to that, in parts of tau^2; 0 where it is not filled."""
    tiles = batch_sizes / PRIORS.tile  # Several times as fast as a remainder.
    return np.where(tiles == np.floor(tiles), tile_factor(batch_sizes) ** 2 - 1, 0.0)


def tile_factor(batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """How uncertain it is what filling the last tile saves, in parts of tau.

    Of n tiles each is an nth of a step at most, and half of that is likely.
    """
    tiles = np.maximum(batch_sizes, 1.0) / PRIORS.tile
    return np.maximum(0.5 / tiles / PRIORS.roughness_sd, 1.0)
