"""What is read off the losses of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BEFORE, AFTER = 10, 40
"""Steps around a change that are looked at."""


def around(run: Mapping[str, Any], change: int) -> NDArray[np.float64]:
    """Losses around a change over the mean of the steps before it, shape `[BEFORE + AFTER]`."""
    at = run["changes"][change]
    losses = np.array(run["probe_losses"])
    return losses[at - BEFORE : at + AFTER] / losses[at - BEFORE : at].mean()


def summary(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Median and range over seeds."""
    return {
        "median": float(np.median(values)),
        "low": float(np.min(values)),
        "high": float(np.max(values)),
    }


def figures(variants: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What the table shows, by variant."""
    result: dict[str, Any] = {}
    for name, runs in variants.items():
        row: dict[str, Any] = {
            "test_accuracy": summary([run["test_accuracy"] for run in runs]),
            "test_loss": summary([run["test_loss"] for run in runs]),
            "changes": [],
        }
        for change in range(len(runs[0]["changes"])):
            after = np.array([around(run, change)[BEFORE:] for run in runs])
            row["changes"].append(
                {"worst": summary(after.max(axis=1)), "mean": summary(after.mean(axis=1))}
            )
        result[name] = row
    return result


def compared(
    variants: Mapping[str, Sequence[Mapping[str, Any]]], other: str = "at once"
) -> dict[str, Any]:
    """The ramp less another way, seed by seed: accuracy in points, then mean and worst losses."""
    pairs = list(zip(variants["ramp"], variants[other], strict=True))
    accuracy = [100 * (a["test_accuracy"] - b["test_accuracy"]) for a, b in pairs]
    rows = {"points of test accuracy": accuracy}
    for change in range(len(pairs[0][0]["changes"])):
        for what, of in (("mean", np.mean), ("worst", np.max)):
            rows[f"{what} loss at change {change + 1}"] = [
                float(of(around(a, change)[BEFORE:]) - of(around(b, change)[BEFORE:]))
                for a, b in pairs
            ]
    return {
        name: {
            **summary(values),
            "higher": int(np.sum(np.array(values) > 0)),
            "lower": int(np.sum(np.array(values) < 0)),
        }
        for name, values in rows.items()
    }
