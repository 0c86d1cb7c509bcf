"""What `hvd-dbs verify --model` finds where it compares trainings, one line a property."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvd_dbs.cli.verify.findings import Finding
from hvd_dbs.rank_names import name_ranks

_TIMES_ROUNDING = 10.0
"""How much more than in one process with its samples in another order rounding may explain."""

_PART_OF_UPDATE = 1e-4
_PART_OF_MODEL_UPDATE = 1e-5
_PART_OF_SIZE = 1e-6
_PART_OF_METRIC = 1e-4

_TELLING = 0.2
"""Part of the update; where rounding explains more nothing can be compared."""


@dataclass(frozen=True)
class Difference:
    """How far a weight of all ranks is from that of one process, in root mean squares.

    Attributes:
        name: Of the weight.
        difference: From the one of one process.
        rounding: Between trainings of one process, whose samples are in another order.
        moved: How far training has moved it.
        size: Of the weight itself.
        count: Values that it has.
    """

    name: str
    difference: float
    rounding: float
    moved: float
    size: float
    count: int


@dataclass(frozen=True)
class MetricDifference:
    """How far a metric of an epoch is from that of one process.

    Attributes:
        name: Of the metric.
        epoch: From 0.
        expected: Its value in one process.
        given: Its value on the rank that differs most.
        rounding: Between trainings of one process, whose samples are in another order.
    """

    name: str
    epoch: int
    expected: float
    given: float
    rounding: float


@dataclass(frozen=True)
class Comparison:
    """What trainings on all ranks and in one process differ by.

    Attributes:
        weights: Each weight.
        metrics: Each metric in each epoch.
        digests: Of all weights, by rank.
        plans: Local batch sizes by step, shape `[steps, size]`.
        roundoff: Of the number type that the model computes in; 0: float32 or better.
    """

    weights: Sequence[Difference]
    metrics: Sequence[MetricDifference]
    digests: Sequence[str]
    plans: Sequence[Sequence[int]]
    roundoff: float = 0.0


def can_compare(comparison: Comparison) -> Finding:
    """Whether training moves weights much farther than rounding does."""
    moved = _whole([one.moved for one in comparison.weights], comparison)
    rounding = _whole([one.rounding for one in comparison.weights], comparison)
    if not np.isfinite(moved):
        text = "weights can be compared: training makes them NaN or infinite; look for such samples"
        return Finding(False, f"{text}, or give a smaller learning rate")
    if not moved > 0:
        text = "weights can be compared: training does not move them; give more --steps"
        return Finding(False, text)
    part = rounding / moved
    if not _TIMES_ROUNDING * part <= _TELLING:
        return Finding(
            False,
            f"weights can be compared: one process itself learns something else where the samples "
            f"of each batch are in another order, by {_percent(part)} of the update",
        )
    text = f"training moves them by {moved:.2g}, rounding by {_percent(part)} of that"
    return Finding(True, f"weights can be compared: {text}")


def model_findings(comparison: Comparison) -> list[Finding]:
    """All findings, the same on all ranks; `can_compare` comes first, and without it little."""
    size = len(comparison.digests)
    found = [can_compare(comparison)]
    if size > 1:
        plans = {tuple(plan) for plan in comparison.plans}
        text = f"{len(plans)} different ones in {len(comparison.plans)} steps"
        found.append(Finding(len(plans) > 1, f"plans change: {text}"))
    if found[0].is_ok:
        found += [weights_finding(comparison), metrics_finding(comparison)]
    others = [rank for rank, one in enumerate(comparison.digests) if one != comparison.digests[0]]
    if size > 1:
        claim = "weights are the same on all ranks, bit for bit"
        text = f"{claim}: {name_ranks(others)}: other ones than on rank 0" if others else claim
        found.append(Finding(not others, text))
    return found


def weights_finding(comparison: Comparison) -> Finding:
    """Whether all ranks have learned what one process does; names what differs most."""
    claim = "weights as of one process with whole global batches"
    excess = [_excess(one, comparison) for one in comparison.weights]
    if not excess:
        return Finding(False, f"{claim}: the model has no weights")
    worst = int(np.argmax(np.nan_to_num(excess, nan=np.inf)))
    one, wrong = comparison.weights[worst], sum(not value <= 1 for value in excess)
    allowed = _allowed(one, comparison)
    if not wrong:
        text = f"at most {one.difference:.2g} (allowed {allowed:.2g}), of {one.name}"
        return Finding(True, f"{claim}: {text}")
    if not np.isfinite(one.difference):
        text = f"{wrong} of {len(excess)} differ, {one.name} most: it is NaN or infinite"
        return Finding(False, f"{claim}: {text}")
    return Finding(
        False,
        f"{claim}: {wrong} of {len(excess)} differ, {one.name} most, by {one.difference:.2g} "
        f"(allowed {allowed:.2g}): {_percent(_ratio(one.difference, one.moved))} of what training "
        f"moved it by, {_percent(_ratio(one.difference, one.size))} of its size",
    )


def metrics_finding(comparison: Comparison) -> Finding:
    """Whether what `fit` reports is what it reports in one process."""
    names = list(dict.fromkeys(one.name for one in comparison.metrics))
    claim = f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''} likewise"
    excess = [_metric_excess(one, comparison) for one in comparison.metrics]
    if not excess:
        return Finding(True, "fit reports no metrics")
    worst = int(np.argmax(np.nan_to_num(excess, nan=np.inf)))
    one = comparison.metrics[worst]
    text = f"largest difference {abs(one.given - one.expected):.2g}"
    if excess[worst] <= 1:
        return Finding(True, f"{claim}: {text}")
    return Finding(
        False,
        f"{claim}: {one.name} of epoch {one.epoch} is {one.given:.6g}, in one process "
        f"{one.expected:.6g}",
    )


def failed_metrics(comparison: Comparison) -> list[str]:
    """Metrics that differ."""
    wrong = [one.name for one in comparison.metrics if not _metric_excess(one, comparison) <= 1]
    return list(dict.fromkeys(wrong))


def _excess(one: Difference, comparison: Comparison) -> float:
    allowed = _allowed(one, comparison)
    if one.difference == 0:
        return 0.0
    return one.difference / allowed if allowed > 0 else np.inf


def _allowed(one: Difference, comparison: Comparison) -> float:
    of_model = _whole([other.moved for other in comparison.weights], comparison)
    return max(
        _TIMES_ROUNDING * one.rounding,
        _PART_OF_UPDATE * one.moved,
        _PART_OF_MODEL_UPDATE * of_model,
        _PART_OF_SIZE * one.size,
    )


def _metric_excess(one: MetricDifference, comparison: Comparison) -> float:
    part = _PART_OF_METRIC if comparison.roundoff == 0 else 4 * comparison.roundoff
    allowed = max(_TIMES_ROUNDING * one.rounding, part * max(abs(one.expected), 1e-3))
    return abs(one.given - one.expected) / allowed


def _whole(values: Sequence[float], comparison: Comparison) -> float:
    """Root mean square over all weights of what is one of each."""
    counts = np.array([one.count for one in comparison.weights], dtype=float)
    if not counts.sum():
        return 0.0
    return float(np.sqrt(np.sum(counts * np.square(values)) / counts.sum()))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else np.inf)


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %"
