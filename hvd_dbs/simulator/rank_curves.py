"""Undisturbed compute time of every rank against its samples, for all ranks at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.measured_curves import MeasuredCurve
from hvd_dbs.simulator.rank_groups import (
    AffineRanks,
    MeasuredRanks,
    RankGroup,
    SaturatingRanks,
    SawtoothRanks,
)
from hvd_dbs.simulator.sawtooth import sawtooth_seconds


@dataclass(frozen=True)
class RankCurves:
    """Seconds t_i(b) until a rank has its gradients, and until its first bucket is ready.

    A rank's curve is `fixed + per_sample * max(b, saturation)`, or, where `row >= 0`,
    `scale * table[row, b]`.

    Attributes:
        fixed: Seconds, shape `[size]`.
        per_sample: Seconds a sample, shape `[size]`.
        saturation: Samples, shape `[size]`.
        scale: Factor of a tabled curve, shape `[size]`.
        row: The rank's table row or -1, shape `[size]`.
        table: Seconds by row and batch size, NaN outside of the range, shape `[rows, most + 1]`.
        first: The first bucket is ready after `first[0] * t + first[1]`, shape `[2, size]`.
    """

    fixed: NDArray[np.float64]
    per_sample: NDArray[np.float64]
    saturation: NDArray[np.float64]
    scale: NDArray[np.float64]
    row: NDArray[np.int64]
    table: NDArray[np.float64]
    first: NDArray[np.float64]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.fixed)

    def seconds(self, batch_sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of each rank at its own batch size; shapes `[size]`."""
        seconds = self.fixed + self.per_sample * np.maximum(batch_sizes, self.saturation)
        if len(self.table):
            tabled = self.row >= 0
            values = self.table[self.row[tabled], batch_sizes[tabled]]
            seconds[tabled] = self.scale[tabled] * values
        return np.asarray(seconds, dtype=np.float64)

    def first_seconds(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds until the first bucket is ready, from the undisturbed seconds; `[size]`."""
        return np.asarray(self.first[0] * seconds + self.first[1], dtype=np.float64)


def make_curves(
    groups: Sequence[RankGroup],
    measured: Mapping[tuple[str | None, str], MeasuredCurve],
    gamma: float,
    random: np.random.Generator,
) -> RankCurves:
    """The curves of a scenario's ranks.

    Args:
        groups: The ranks, in order.
        measured: Measured curves by file and device.
        gamma: Part of the backward pass after which the first bucket is ready.
        random: Draws the spread of speeds and the saw-teeth.
    """
    columns: list[NDArray[np.float64]] = []
    tables: list[NDArray[np.float64]] = []
    for group in groups:
        scale = np.exp(group.spread * random.standard_normal(group.count))
        curve = _curve_of(group, measured, random)
        row = -1
        if curve.table is not None:
            row = len(tables)
            tables.append(curve.table)
        columns.append(np.stack(_columns(group, curve, scale, row, gamma)))
    fixed, per_sample, saturation, scales, row_of, ratio, shift = np.concatenate(columns, 1)
    return RankCurves(
        fixed=fixed,
        per_sample=per_sample,
        saturation=saturation,
        scale=scales,
        row=row_of.astype(np.int64),
        table=_stacked(tables),
        first=np.stack([ratio, shift]),
    )


class _Curve(NamedTuple):
    """The curve of a group's rank of mean speed: see `RankCurves`."""

    fixed: float = 0.0
    per_sample: float = 0.0
    saturation: float = 0.0
    table: NDArray[np.float64] | None = None


def _curve_of(
    group: RankGroup,
    measured: Mapping[tuple[str | None, str], MeasuredCurve],
    random: np.random.Generator,
) -> _Curve:
    if isinstance(group, MeasuredRanks):
        curve = measured[(group.file, group.device)]
        table = np.full(curve.most + 1, np.nan)
        table[curve.least :] = curve.seconds
        return _Curve(table=table)
    if not isinstance(group, AffineRanks):
        return _Curve()
    fixed, per_sample = group.fixed_ms / 1000, group.per_sample_ms / 1000
    if isinstance(group, SaturatingRanks):
        return _Curve(fixed, per_sample, group.saturation)
    if isinstance(group, SawtoothRanks):
        samples = np.arange(1, (group.max_batch_size or 1) + 1)
        worth = sawtooth_seconds(samples, group.tile, group.roughness, random)
        table = np.concatenate([[np.nan], fixed + per_sample * worth])
        return _Curve(fixed, per_sample, table=table)
    return _Curve(fixed, per_sample)


def _columns(
    group: RankGroup, curve: _Curve, scale: NDArray[np.float64], row: int, gamma: float
) -> list[NDArray[np.float64]]:
    """One array for each field of `RankCurves` but the table, shapes `[count]`."""
    forward = group.forward_fraction
    fixed_forward = group.forward_fixed_fraction
    fixed_forward = forward if fixed_forward is None else fixed_forward
    ones = np.ones(group.count)
    return [
        curve.fixed * scale,
        curve.per_sample * scale,
        curve.saturation * ones,
        scale,
        row * ones,
        (forward + gamma * (1 - forward)) * ones,
        (1 - gamma) * (fixed_forward - forward) * curve.fixed * scale,
    ]


def _stacked(tables: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Tables of different lengths as one, NaN where a table has no value."""
    width = max((len(table) for table in tables), default=0)
    stacked = np.full((len(tables), width), np.nan)
    for index, table in enumerate(tables):
        stacked[index, : len(table)] = table
    return stacked
