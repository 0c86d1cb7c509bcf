"""From what a job measured to the figures that are reported. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.intervals import mean_and_half
from benchmarks.training import rank_curves
from benchmarks.training.clusters import DBS, PLAIN, STATIC, Lengths

_WINDOW = 5
_SETTLED_STEPS = 8
NEARLY = 0.95
"""The share of a speed at which it counts as reached."""


@dataclass(frozen=True)
class Summary:
    """A figure over rounds: median and quartiles."""

    median: float
    low: float
    high: float
    num_rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Of one value a round, at least one."""
        found = np.array(list(values), dtype=np.float64)
        low, median, high = np.percentile(found, [25, 50, 75])
        return cls(float(median), float(low), float(high), len(found))


def steps_to_reach(
    step_seconds: ArrayLike, target_seconds: float, share: float = NEARLY
) -> tuple[int, float] | None:
    """After how many steps, and seconds, a speed is reached for good.

    It is reached with a step of at most `target_seconds / share` from which on five steps, and all
    that are left, have a median no longer than that.

    Args:
        step_seconds: Seconds of each step from the start on, at least five.
        target_seconds: Step of the full speed.
        share: Part of the speed that is enough.

    Returns:
        Steps and seconds before that, or None if it never is.
    """
    steps = np.asarray(step_seconds, dtype=np.float64)
    limit = target_seconds / share
    for first in range(len(steps) - _WINDOW + 1):
        left = steps[first:]
        if max(left[0], np.median(left[:_WINDOW]), np.median(left)) <= limit:
            return first, float(steps[:first].sum())
    return None


def without_epoch_starts(step_seconds: ArrayLike, epoch_steps: int) -> NDArray[np.float64]:
    """All steps but the first of each epoch, in which Keras begins to read the data anew."""
    steps: NDArray[np.float64] = np.asarray(step_seconds, dtype=np.float64)
    kept: NDArray[np.float64] = steps[np.arange(len(steps)) % epoch_steps != 0]
    return kept


def job_figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one job, as plain data; docs/benchmarks.md says what each one is."""
    lengths = Lengths(**measured["lengths"])
    batch_size = measured["global_batch_size"]
    has_neighbour = measured["neighbour_of"] is not None
    calm = _ideals(measured, "calm")
    busy = _ideals(measured, "busy") if has_neighbour else calm
    cycle = _cycle_steps(lengths) if has_neighbour else np.zeros(1, dtype=bool)
    ideal = calm + (busy - calm) * float(cycle.mean())
    seconds = {
        name: [_round_seconds(steps, lengths, has_neighbour) for steps in rounds]
        for name, rounds in measured["rounds"].items()
    }
    best = STATIC if STATIC in seconds else "even"
    found: dict[str, Any] = {}
    for name, own in seconds.items():
        row: dict[str, Any] = {
            "step_seconds": Summary.of(own),
            "samples_per_second": Summary.of(batch_size / s for s in own),
            "of_ideal": Summary.of(ideal[i] / s for i, s in enumerate(own)),
        }
        for key, other in (("of_plain", PLAIN), ("of_best_static", best)):
            if other in seconds:
                pairs = zip(seconds[other], own, strict=True)
                row[key] = Summary.of(theirs / ours for theirs, ours in pairs)
        if name != DBS and len(own) > 1 and DBS in seconds:
            mean, half = mean_and_half(np.divide(own, seconds[DBS]) - 1)
            row["over_dbs"] = {"mean": float(mean), "half": float(half)}
        if name in measured["starts"] and not has_neighbour:
            start = measured["starts"][name]
            row["start"] = _reached(start, row["step_seconds"].median)
            row["start_to_ideal"] = _reached(start, float(np.median(ideal)))
        if has_neighbour:
            row["neighbour"] = _visits(
                measured["rounds"][name], lengths, float(np.median(busy)), float(np.median(calm))
            )
        row["batch_sizes"] = measured["plans"][name][-1]
        if name in measured["busy"] and not has_neighbour:
            row["where"] = _where(measured, name, float(np.median(ideal)))
        found[name] = row
    result: dict[str, Any] = _plain(
        {
            "ideal_step_seconds": Summary.of(ideal),
            "ideal_samples_per_second": Summary.of(batch_size / ideal),
            "strategies": found,
            "overhead": _overhead(measured, lengths),
        }
    )
    return result


def curves_of(measured: Mapping[str, Any], seconds: ArrayLike) -> NDArray[np.float64]:
    """The ranks' curves through seconds at a job's points, as `rank_curves.table` gives them."""
    points = np.array(measured["curve_points"])
    return rank_curves.table(points, np.asarray(seconds), measured["global_batch_size"])


def _ideals(measured: Mapping[str, Any], state: str) -> NDArray[np.float64]:
    """Seconds of the ideal step in each round, by the curves before and after it."""
    passes = np.array(measured["curve_seconds"][state])
    means = (passes[:-1] + passes[1:]) / 2
    return np.array([rank_curves.ideal_seconds(curves_of(measured, seconds)) for seconds in means])


def _cycle_steps(lengths: Lengths) -> NDArray[np.bool_]:
    """With a neighbour: in which of the steps that count it is there."""
    cycle = lengths.cycle
    steps = np.arange(cycle.num_epochs * lengths.steps)
    there = (steps >= cycle.begin) & (steps < cycle.end)
    counted: NDArray[np.bool_] = there[steps % lengths.steps != 0]
    return counted


def _round_seconds(steps: Sequence[float], lengths: Lengths, has_neighbour: bool) -> float:
    """Mean seconds a step in one round."""
    epoch_steps = lengths.steps if has_neighbour else len(steps)
    return float(np.mean(without_epoch_starts(steps, epoch_steps)))


def _reached(steps: ArrayLike, target_seconds: float) -> dict[str, Any] | None:
    found = steps_to_reach(steps, target_seconds)
    return None if found is None else {"steps": found[0], "seconds": found[1]}


def _visits(
    rounds: Sequence[Sequence[float]], lengths: Lengths, busy_ideal: float, calm_ideal: float
) -> dict[str, Any]:
    """How a strategy meets the neighbour's coming and going."""
    cycle = lengths.cycle
    found: dict[str, Any] = {}
    for key, first, last, ideal in (
        ("comes", cycle.begin, cycle.end, busy_ideal),
        ("goes", cycle.end, cycle.num_epochs * lengths.steps, calm_ideal),
    ):
        # The median over rounds at each step: one hiccup of the machine is not the strategy's.
        steps = np.median([steps[first:last] for steps in rounds], axis=0)
        settled = float(np.median(steps[-_SETTLED_STEPS:]))
        found[key] = {
            "settled_of_ideal": ideal / settled,
            "to_settled": _reached(steps, settled),
            "to_ideal": _reached(steps, ideal),
        }
    return found


def _where(measured: Mapping[str, Any], name: str, ideal: float) -> dict[str, Any]:
    """What stands between the ideal step and the usual one, with the plan used most."""
    passes = np.array(measured["curve_seconds"]["calm"])
    curves = curves_of(measured, np.median(passes, axis=0))
    heard = measured["busy"][name]
    busy = np.array(heard["seconds"])
    steps = np.concatenate([steps[1:] for steps in measured["rounds"][name]])
    return {
        "batch_sizes": heard["batch_sizes"],
        "ideal": ideal,
        "plan": rank_curves.plan_seconds(curves, heard["batch_sizes"]),
        "busy": float(np.median(busy, axis=0).max()),
        "slowest_busy": float(np.median(busy.max(axis=1))),
        "step": float(np.median(steps)),
    }


def _overhead(measured: Mapping[str, Any], lengths: Lengths) -> dict[str, Summary]:
    """By how much longer steps are than plain Horovod's in the same round, on equal ranks."""
    rounds = measured["overhead_rounds"]
    if not rounds.get(PLAIN):
        return {}
    medians = {
        name: [float(np.median(steps[1:])) for steps in found] for name, found in rounds.items()
    }
    return {
        name: Summary.of(o / p - 1 for o, p in zip(own, medians[PLAIN], strict=True))
        for name, own in medians.items()
        if name != PLAIN
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Summary):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value
