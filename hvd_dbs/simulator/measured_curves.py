"""Measured step times from a file: device, batch size, milliseconds."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("device", "batch_size", "milliseconds")


@dataclass(frozen=True)
class MeasuredCurve:
    """Seconds of a step at every batch size of a measured range.

    Between two measured batch sizes the curve is a straight line. Outside of the range it says
    nothing, so the range is a bound: no plan leaves it.

    Attributes:
        least: The smallest batch size measured.
        seconds: Seconds at `least`, `least + 1`, ..., shape `[most - least + 1]`.
    """

    least: int
    seconds: NDArray[np.float64]

    @property
    def most(self) -> int:
        """The largest batch size measured."""
        return self.least + len(self.seconds) - 1


def read_curves(path: Path) -> Mapping[str, MeasuredCurve]:
    """Reads a CSV file with the columns device, batch_size and milliseconds, in any order.

    Returns:
        The curves by device, in the order in which the file names the devices.

    Raises:
        ValueError: If the file cannot be read, a column is missing, a value is no positive
            number or a batch size of a device occurs twice; the message names the line.
    """
    points: dict[str, dict[int, float]] = {}
    try:
        # Spreadsheets begin a file with a mark, and people put a blank after a comma.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(
                    f"{path}: no column {', '.join(missing)}; the first line is "
                    f"{','.join(reader.fieldnames or ())!r}. Expected {','.join(COLUMNS)}."
                )
            for row in reader:
                device, batch_size, seconds = _point(row, f"{path}, line {reader.line_num}")
                if points.setdefault(device, {}).setdefault(batch_size, seconds) != seconds:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: a second time for {device!r} at "
                        f"batch_size={batch_size}. Give one, such as the median."
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read as CSV: {error}.") from error
    if not points:
        raise ValueError(f"{path}: no measured point. Expected lines of {','.join(COLUMNS)}.")
    return {device: _curve(by_batch_size) for device, by_batch_size in points.items()}


def _point(row: Mapping[str, str | None], place: str) -> tuple[str, int, float]:
    device = (row["device"] or "").strip()
    if not device:
        raise ValueError(f"{place}: device is empty; expected a name.")
    try:
        batch_size, milliseconds = int(row["batch_size"] or ""), float(row["milliseconds"] or "")
    except ValueError:
        batch_size, milliseconds = 0, 0.0
    if not (batch_size >= 1 and 0 < milliseconds < float("inf")):
        raise ValueError(
            f"{place}: batch_size={row['batch_size']!r}, milliseconds={row['milliseconds']!r}; "
            f"expected a whole number from 1 on and a number above 0."
        )
    return device, batch_size, milliseconds / 1000


def _curve(points: Mapping[int, float]) -> MeasuredCurve:
    measured = sorted(points)
    every = np.arange(measured[0], measured[-1] + 1)
    seconds = np.interp(every, measured, [points[batch_size] for batch_size in measured])
    return MeasuredCurve(measured[0], seconds)
