"""What a rank's curve is taken to be between and beyond the batch sizes that it has visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.point_curves import LEAST_ELASTICITY
from hvd_dbs.balancing.priors import PRIORS

Rows = NDArray[np.float64]

_NUGGET = 1e-8
"""Keeps the inverse finite where two points say the same."""
_FIXED, _MORE_FIXED = PRIORS.fixed_part, PRIORS.fixed_part + PRIORS.fixed_part_sd


class CurvePrior:
    """A Gaussian process for log t(b), for some ranks at once.

    With x = b / b_1, u_f(x) = f + (1 - f) x, and t_1 of a rank's first round, the mean is
    log t_1 + log u_f, and the covariance 1 + s^2 phi phi' + tau^2 exp(-|b - b'| / l): the level,
    the fixed part f with phi = log(u_{f+s} / u_f) / s, and what kernels add. Where a jump of the
    curve was seen its square is added to tau^2, so that it counts for nearby batch sizes alone.

    Args:
        first: b_1 and log t_1, shape `[rows, 2]`.
        roughness: tau^2, shape `[rows]`.
        jumps: Expected squares of jumps at the points, shape `[rows, capacity]`.
        points: Batch sizes visited, NaN for none, shape `[rows, capacity]`.
        mean: What is known of log t there, same shape.
        covariance: And how surely, and together with what else, `[rows, capacity, >= capacity]`.
    """

    def __init__(
        self, first: Rows, roughness: Rows, jumps: Rows, points: Rows, mean: Rows, covariance: Rows
    ) -> None:
        self._first, self._roughness, self._points = first, roughness[:, np.newaxis], points
        self._jumps, self._rough = jumps, np.sqrt(self._roughness + jumps)
        self._covariance, there = covariance, np.isfinite(points)
        self._there = there
        both = there[:, :, np.newaxis] & there[:, np.newaxis, :]
        kernel = self._kernel(points, points, self._rough, self._rough)
        kernel = np.where(both, kernel, 0.0)
        at = np.arange(points.shape[1])
        kernel[:, at, at] += np.where(there, _NUGGET, 1.0)
        self._inverse = np.linalg.inv(kernel)
        self._seconds = mean
        self._off = np.where(there, mean - self._mean(points), 0.0)

    def at(self, batch_sizes: Rows) -> tuple[Rows, Rows, Rows]:
        """Mean, variance, and covariance with the rest, at one more batch size of each rank."""
        b = batch_sizes[:, np.newaxis]
        rough = np.sqrt(self._roughness + self.jump_at(batch_sizes)[:, np.newaxis])
        cross = self._kernel(b, self._points, rough, self._rough)[:, 0]
        cross = np.where(self._there, cross, 0.0)
        weight = np.einsum("rj,rjk->rk", cross, self._inverse)
        with_rest = np.einsum("rj,rjk->rk", weight, self._covariance)
        own = self._kernel(b, b, rough, rough)[:, 0, 0]
        variance = own - np.sum(weight * cross, axis=1)
        variance += np.sum(with_rest[:, : weight.shape[1]] * weight, axis=1)
        mean = self._mean(b)[:, 0] + np.sum(weight * self._off, axis=1)
        possible = self._possible(batch_sizes, mean)
        # Points that say what cannot be are not of one curve, and not to be trusted elsewhere.
        return possible, variance + (mean - possible) ** 2, with_rest

    def elasticity(self, batch_sizes: Rows) -> tuple[Rows, Rows]:
        """D log t / d log b of the mean and the fixed part, at `[rows]`, and its deviation."""
        variance = PRIORS.fixed_part_sd**2
        phi = np.where(self._there, self._tilt(self._points), 0.0)
        weight = variance * np.einsum("rj,rjk->rk", phi, self._inverse)
        left = variance - variance * np.sum(weight * phi, axis=1)
        among = self._covariance[:, :, : weight.shape[1]]
        left += np.einsum("rj,rjk,rk->r", weight, among, weight)
        # The process takes points for well known. Where they are not, they still do no harm.
        left = np.minimum(left, variance)
        x = batch_sizes / self._first[:, 0]
        before = 1 - _FIXED / _line(x, _FIXED)
        turn = (1 - _MORE_FIXED / _line(x, _MORE_FIXED) - before) / PRIORS.fixed_part_sd
        value = before + turn * np.sum(weight * self._off, axis=1)
        return value, np.abs(turn) * np.sqrt(np.maximum(left, 0.0))

    def jump_at(self, batch_sizes: Rows) -> Rows:
        """Expected square of a jump at one more batch size of each rank.

        A part p of what kernels add at a jump is alike there, so p^2 of its square. The largest of
        these counts.
        """
        alike = self._alike(batch_sizes[:, np.newaxis], self._points)[:, 0]
        nearby = np.where(self._there, self._jumps * alike**2, 0.0)
        return np.asarray(nearby.max(axis=1))

    def _possible(self, batch_sizes: Rows, mean: Rows) -> Rows:
        """The mean, or what is possible: between neighbours, or an elasticity of 0.2 to 1."""
        points, b = self._points, batch_sizes[:, np.newaxis]
        low = np.fmax.reduce(np.where(points < b, points, np.nan), axis=1)
        high = np.fmin.reduce(np.where(points > b, points, np.nan), axis=1)
        ends = np.stack([np.where(np.isnan(low), high, low), np.where(np.isnan(high), low, high)])
        is_end = points == ends[:, :, np.newaxis]
        below, above = np.fmax.reduce(np.where(is_end, self._seconds, np.nan), axis=2)
        longer = np.log(batch_sizes / np.clip(batch_sizes, *ends))  # 0 between neighbours.
        least, most = np.sort([below + LEAST_ELASTICITY * longer, above + longer], axis=0)
        return np.asarray(np.fmin(np.fmax(mean, least), most))

    def _mean(self, b: Rows) -> Rows:
        return self._first[:, 1:] + np.log(_line(b / self._first[:, :1], _FIXED))

    def _tilt(self, b: Rows) -> Rows:
        x = b / self._first[:, :1]
        return np.log(_line(x, _MORE_FIXED) / _line(x, _FIXED)) / PRIORS.fixed_part_sd

    def _alike(self, b: Rows, c: Rows) -> Rows:
        away = np.abs(b[:, :, np.newaxis] - c[:, np.newaxis, :])
        return np.asarray(np.exp(-2 * away / PRIORS.tile))

    def _kernel(self, b: Rows, c: Rows, rough_b: Rows, rough_c: Rows) -> Rows:
        rough = rough_b[:, :, np.newaxis] * rough_c[:, np.newaxis, :] * self._alike(b, c)
        tilt = self._tilt(b)[:, :, np.newaxis] * self._tilt(c)[:, np.newaxis, :]
        return np.asarray(1.0 + PRIORS.fixed_part_sd**2 * tilt + rough)


def _line(x: Rows, fixed: float) -> Rows:
    return fixed + (1 - fixed) * x
