"""Undisturbed compute time of every rank against its samples, for all ranks at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        random: Draws the spread of speeds and the teeth.
    """
    columns: list[NDArray[np.float64]] = []
    rows: list[NDArray[np.float64]] = []
    for group in groups:
        scale = np.exp(group.spread * random.standard_normal(group.count))
        fixed, per_sample, saturation, row = 0.0, 0.0, 0.0, -1
        if isinstance(group, MeasuredRanks):
            curve = measured[(group.file, group.device)]
            table = np.full(curve.most + 1, np.nan)
            table[curve.least :] = curve.seconds
            row = len(rows)
            rows.append(table)
        elif isinstance(group, AffineRanks):
            fixed, per_sample = group.fixed_ms / 1000, group.per_sample_ms / 1000
            if isinstance(group, SaturatingRanks):
                saturation = group.saturation
            if isinstance(group, SawtoothRanks):
                samples = np.arange(1, (group.max_batch_size or 1) + 1)
                worth = sawtooth_seconds(samples, group.tile, group.roughness, random)
                row = len(rows)
                rows.append(np.concatenate([[np.nan], fixed + per_sample * worth]))
        forward = group.forward_fraction
        fixed_forward = group.forward_fixed_fraction
        fixed_forward = forward if fixed_forward is None else fixed_forward
        ones = np.ones(group.count)
        columns.append(
            np.stack(
                [
                    fixed * scale,
                    per_sample * scale,
                    saturation * ones,
                    scale,
                    row * ones,
                    (forward + gamma * (1 - forward)) * ones,
                    (1 - gamma) * (fixed_forward - forward) * fixed * scale,
                ]
            )
        )
    fixed_s, per_sample_s, saturations, scales, row_of, ratio, shift = np.concatenate(columns, 1)
    width = max((len(table) for table in rows), default=0)
    tables = np.full((len(rows), width), np.nan)
    for index, table in enumerate(rows):
        tables[index, : len(table)] = table
    return RankCurves(
        fixed=fixed_s,
        per_sample=per_sample_s,
        saturation=saturations,
        scale=scales,
        row=row_of.astype(np.int64),
        table=tables,
        first=np.stack([ratio, shift]),
    )
