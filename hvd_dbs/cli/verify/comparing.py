"""Puts the trainings of all ranks beside that of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.verify.model_findings import Comparison, Difference, MetricDifference
from hvd_dbs.cli.verify.model_training import ModelTraining, Weights
from hvd_dbs.comm.agreement import allgather_json
from hvd_dbs.comm.collective import Collective

_Metrics = Mapping[str, Sequence[float]]


def compare(
    collective: Collective,
    weights: tuple[Weights, Sequence[str]],
    alone: Sequence[ModelTraining],
    balanced: ModelTraining,
    roundoff: float,
) -> Comparison:
    """Compares with rank 0's first training in one process. Collective.

    Args:
        collective: The job.
        weights: Those before training, and their names.
        alone: This rank's trainings in one process; of rank 0 the first one has the ranks' order.
        balanced: The training on all ranks.
        roundoff: Of the number type that the model computes in.
    """
    first = alone[0]
    expected = of_rank_0(collective, first.weights)
    start, names = weights
    if len(start) != len(expected):  # Not known before the first step.
        start, names = expected, [f"weight {i}" for i in range(len(expected))]
    others = alone[1:] if collective.rank == 0 else alone
    rows = []
    for i, (value, begun) in enumerate(zip(expected, start, strict=True)):
        # Of updates: in half precision other orders begin with other roundings of the weights.
        levels = [
            root_mean_square(
                one.weights[i] - (one.start[i] if one.start else begun) - value + begun
            )
            for one in others
        ]
        rows.append((root_mean_square(balanced.weights[i] - value), max(levels)))
    report = {
        "weights": rows,
        "digest": balanced.digest,
        "sizes": balanced.batch_sizes,
        "metrics": [one.metrics for one in (balanced, *alone)],
    }
    reports = allgather_json(collective, report)
    worst = np.max([one["weights"] for one in reports], axis=0).reshape(-1, 2).tolist()
    differences = [
        Difference(
            name=name,
            difference=difference,
            rounding=level,
            moved=root_mean_square(value - begun),
            size=root_mean_square(value),
            count=value.size,
        )
        for name, (difference, level), value, begun in zip(
            names, worst, expected, start, strict=True
        )
    ]
    return Comparison(
        weights=differences,
        metrics=_metric_differences([one["metrics"] for one in reports]),
        digests=[one["digest"] for one in reports],
        plans=list(zip(*(one["sizes"] for one in reports), strict=True)),
        roundoff=roundoff,
    )


def of_rank_0(collective: Collective, weights: Weights) -> Weights:
    """Rank 0's weights; all ranks have some of the same shapes. Collective."""
    flat = collective.broadcast(np.concatenate([np.zeros(0), *(one.ravel() for one in weights)]))
    ends = np.cumsum([one.size for one in weights])[:-1]
    parts = np.split(flat, ends) if weights else []
    return [part.reshape(one.shape) for part, one in zip(parts, weights, strict=True)]


def root_mean_square(values: NDArray[np.float64]) -> float:
    """Of all values; 0 of none."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _metric_differences(reports: Sequence[Sequence[_Metrics]]) -> list[MetricDifference]:
    """Differences of metrics, of the rank where each is largest.

    Args:
        reports: Metrics of each rank: of the training on all ranks, then of those in one process.
    """
    expected = reports[0][1]
    others = [one for rank, report in enumerate(reports) for one in report[2 if rank == 0 else 1 :]]
    found = []
    for name, values in expected.items():
        for epoch, value in enumerate(values):
            given = [_value(report[0], name, epoch) for report in reports]
            apart = [abs(one - value) for one in given]
            worst = int(np.argmax(np.nan_to_num(apart, nan=np.inf)))
            rounding = max(abs(_value(one, name, epoch) - value) for one in others)
            found.append(MetricDifference(name, epoch, value, given[worst], rounding))
    return found


def _value(metrics: _Metrics, name: str, epoch: int) -> float:
    values = metrics.get(name, ())
    return values[epoch] if epoch < len(values) else float("nan")
