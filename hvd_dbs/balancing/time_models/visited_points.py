"""A memory of the batch sizes that a rank has tried, and of what each of them took."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.change import confirm
from hvd_dbs.balancing.time_models.line_fit import add_point, no_sums, rescale
from hvd_dbs.balancing.time_models.load_warning import no_warnings, read_load
from hvd_dbs.balancing.time_models.point_curve import drawn_to_line, misses, no_misses, slope_beyond
from hvd_dbs.balancing.time_models.time_model import ModelState
from hvd_dbs.balancing.time_models.usual_pace import no_pace, slow_spells, usual_pace
from hvd_dbs.balancing.visited_curves import SlowSpells, VisitedCurves

_FIRST_NOISE, _ROUNDS_OF_FIRST_NOISE = 0.03, 8.0
"""Relative deviation of a single step before anything is known of it, and for how many rounds that
counts where a surprise is judged."""
_FAR_SIGMAS, _FAR_LEAST, _UNSURE = 4.0, 0.05, 4.0
_CLEAR, _PAUSE, _FEW_STEPS = 1.5, 3.0, 3.0
_TOOTH, _STRANGE = 1.6, 1.8
"""No curve is believed to jump by more than the first factor from one batch size to a nearby one,
nor a new batch size to be further from what was expected of it than the second."""
_DRIFT_WEIGHT, _DRIFT_SIGMAS, _DRIFT_LEAST = 0.25, 3.5, 0.02
_MOST_STEPS, _STEPS_AFTER_CHANGE, _STEPS_AFTER_DRIFT, _OTHER_CURVE = 60.0, 3.0, 8.0, 0.15
_STEPS_AFTER_WARNING = 1.0
_MOST_IN_A_ROUND = 1e6
_FIRST_STEP = 0.1
_LINE_KEEP, _NOISE_WEIGHT = 0.9, 0.05


class VisitedPoints:
    """t_i(b) is the mean of what was seen at b; straight lines between, a fitted slope beyond.

    GPU curves are saw-teeth: a batch size can be much slower than the next smaller one, so a
    line through all points says little about any of them, and only what was visited is known.
    The last `capacity` batch sizes are kept. Where the start of communication is measured, a
    time is Cannikin's f_i, so hidden communication is seen (`Measurement.finish_seconds`).

    At a new batch size a change of pace looks like a tooth. Only a known one tells: there, a
    time that is far off (six deviations and 7.5 %) is another pace at once, unless it may be a
    pause or the first step of a batch size; four deviations and 5 % have to be seen twice running,
    and so has a time at a new point that no tooth explains. Then all points are scaled by what was
    seen and count little from then on; after a change of over 15 % the points at other batch sizes
    are forgotten, since what slows a rank may change its curve. Small differences in the same
    direction add up and scale the points likewise (drift). A single far time is an outlier.

    The first step of a batch size takes longer, since kernels tune themselves. Where it is all that
    is known of one, up to 10 % over what was expected are taken to come from that.

    Where the host's load has told changes of pace before, its rise scales the points beforehand
    (`load_warning`), and the time of the round that follows is believed whatever it is. Where it
    has not yet, a far time in the direction of the load is believed at once.

    Beside the points it keeps the rank's usual pace, which disturbances that pass do not move.

    Times at points are drawn to a line through the last rounds. Where the line has predicted repeat
    visits as well as the points have, it takes their place.

    Slope beyond the points: d log t / d log b around the batch size in use, fitted robustly to
    the points, drawn towards 0.9.

    The thresholds are ours, chosen on generated saw-tooth, affine and saturating curves.

    Args:
        capacity: Batch sizes remembered for each rank.
    """

    def __init__(self, capacity: int = 8) -> None:
        if capacity < 2:
            raise ValueError(f"capacity={capacity} must be at least 2 batch sizes.")
        self.capacity = capacity
        self.record_size = 2 * capacity + 7

    def init(self, num_rows: int) -> ModelState:
        """Nothing visited."""
        points = (num_rows, self.capacity)
        return {
            "batch_size": np.full(points, np.nan),
            "seconds": np.full(points, np.nan),
            "num_steps": np.zeros(points),
            "visited_at": np.zeros(points),
            "num_rounds": np.zeros(num_rows),
            "current": np.full(num_rows, np.nan),
            "noise": np.full(num_rows, _FIRST_NOISE**2),
            "suspect": np.zeros(num_rows),
            "changed": np.zeros(num_rows),
            "slowest": np.zeros(num_rows),
            "drift": np.zeros(num_rows),
            "line": no_sums(num_rows),
            "misses": no_misses(num_rows),
            **no_pace(num_rows),
            **no_warnings(num_rows),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Folds a round into the point of its batch size."""
        usable, t = measurement.usable, measurement.finish_seconds
        b, rows = measurement.batch_sizes, np.arange(len(t))
        steps = np.where(
            measurement.num_steps >= 1, np.minimum(measurement.num_steps, _MOST_IN_A_ROUND), 1.0
        )
        is_here = state["batch_size"] == b[:, np.newaxis]
        seen, here = np.any(is_here, axis=1), np.argmax(is_here, axis=1)
        before = np.where(seen, state["num_steps"][rows, here], 0.0)
        variance = 1.0 / steps + 1.0 / np.maximum(before, 1.0)

        known_surprise = np.log(t / state["seconds"][rows, here])
        expected = self.curves(self.record(state)).seconds(b)
        # In its first step a batch size has its kernels tuned: of what that step alone took longer
        # than expected, some is not the batch size's own.
        first = ~seen & (steps < 2) & (state["num_rounds"] > 0)
        t = np.where(first, np.clip(expected, t - _FIRST_STEP * expected, t), t)
        surprise = np.where(seen, known_surprise, _new_point_surprise(state, b, t, expected))
        awaited = usable & (state["load_jump"] != 0) & np.isfinite(expected)
        surprise = np.where(awaited, np.log(t / expected), surprise)
        # What the load has told beforehand needs less to be believed.
        unsure = np.where(awaited, 1.0, 1.0 + _UNSURE / np.maximum(state["num_rounds"], 1.0))
        noise = _believed_noise(state)
        sigma = unsure * np.sqrt(noise * variance)
        tolerance = np.maximum(_FAR_SIGMAS * sigma, _FAR_LEAST)
        far = usable & (np.abs(surprise) > np.where(seen | awaited, tolerance, 0.0))
        changed, suspect = confirm(state["suspect"], surprise, far, usable)
        # One of few steps that was a pause looks like a change, and so does the first step of a
        # batch size, in which kernels tune themselves. All else far beyond noise is believed: from
        # three steps on, their mean leaves a pause out (`typical_seconds`).
        few = steps < _FEW_STEPS
        ratio = np.exp(surprise)
        pause = few & ((ratio - 1.0) * steps + 1.0 > _PAUSE)
        first = few & (state["current"] != b) & (surprise > 0)
        changed |= far & seen & (np.abs(surprise) > _CLEAR * tolerance) & ~pause & ~first
        changed |= awaited & (state["warned"] > 0)
        changed |= awaited & far & (surprise * state["load_jump"] > 0) & ~pause
        suspect = np.where(changed, 0.0, suspect)

        steady = usable & seen & ~far
        drift = np.where(
            steady, state["drift"] + _DRIFT_WEIGHT * (surprise - state["drift"]), state["drift"]
        )
        spread = np.sqrt(noise / steps * _DRIFT_WEIGHT / (2 - _DRIFT_WEIGHT))
        drifted = steady & (np.abs(drift) > np.maximum(_DRIFT_SIGMAS * spread, _DRIFT_LEAST))
        moved = changed | drifted
        scale = np.exp(np.where(changed, surprise, np.where(drifted, drift, 0.0)))
        counts = state["num_steps"]
        # A very different pace may have another curve: what it does elsewhere is not known.
        other = changed & (np.abs(surprise) > _OTHER_CURVE)
        counts = np.where(other[:, np.newaxis] & ~is_here, 0.0, counts)
        # A drift was seen over several rounds, so it is known better than a change.
        most = np.where(changed, _STEPS_AFTER_CHANGE, _STEPS_AFTER_DRIFT)
        faded = np.minimum(counts, most[:, np.newaxis])
        squared = np.minimum((surprise - state["drift"]) ** 2 / variance, 25 * state["noise"])
        weight = np.maximum(_NOISE_WEIGHT, 1.0 / (state["num_rounds"] + 1.0))
        learnt = np.maximum(state["noise"] + weight * (squared - state["noise"]), 1e-10)

        pace = np.log(t) - ELASTICITY * np.log(b)
        usual = usual_pace(state, pace, steps, usable)
        slower = np.where(usable & (~far | changed), pace - usual["usual"], 0.0)
        slowest = np.maximum(state["slowest"], slower)
        load = read_load(state, measurement.cpu_load, np.where(usable, surprise, np.nan))
        # No rank is expected to be slower than it has been seen.
        load["warned"] = np.minimum(load["warned"], slowest - slower)

        new: ModelState = {
            "batch_size": np.where(counts > 0, state["batch_size"], np.nan),
            "seconds": np.where(counts > 0, state["seconds"] * scale[:, np.newaxis], np.nan),
            "num_steps": np.where(moved[:, np.newaxis], faded, counts),
            "visited_at": state["visited_at"].copy(),
            "num_rounds": state["num_rounds"] + usable,
            "current": np.where(usable, b, state["current"]),
            "noise": np.where(steady, learnt, state["noise"]),
            "suspect": suspect,
            "changed": moved.astype(np.float64),
            "drift": np.where(moved, 0.0, drift),
            "slowest": slowest,
            "line": state["line"],
            **usual,
            "misses": misses(state, b, t, usable & seen & (state["current"] != b), here),
            **slow_spells(state, np.log(scale), steps),
            **load,
        }
        # An outlier counts only where nothing else is known of its batch size.
        folded = np.flatnonzero(usable & (~far | changed))
        oldest = np.argmin(np.where(counts > 0, state["visited_at"], -1.0), axis=1)
        slot = np.where(seen, here, oldest)[folded]
        old = np.where(seen[folded], new["num_steps"][folded, slot], 0.0)
        mean = np.where(seen[folded], new["seconds"][folded, slot], 0.0)
        total = old + steps[folded]
        new["seconds"][folded, slot] = mean + (t[folded] - mean) * steps[folded] / total
        new["num_steps"][folded, slot] = np.minimum(total, _MOST_STEPS)
        new["batch_size"][folded, slot] = b[folded]
        new["visited_at"][folded, slot] = new["num_rounds"][folded]
        sums = rescale(state["line"], scale, np.where(moved, most, np.inf))
        weights = np.where(usable & (~far | changed), steps, 0.0)
        new["line"] = add_point(sums, b, t, weights, _LINE_KEEP)
        return _warned(new)

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Points, their seconds, and the other fields of `VisitedCurves`, `[rows, record_size]`."""
        points, times = state["batch_size"], state["seconds"]
        order = np.argsort(np.where(np.isfinite(points), points, np.inf), axis=1)
        points, times, counts = (
            np.take_along_axis(rows, order, axis=1) for rows in (points, times, state["num_steps"])
        )
        slope = slope_beyond(points, times, counts, state)
        times = drawn_to_line(points, times, counts, state)
        here = points == state["current"][:, np.newaxis]
        steps = np.maximum(np.sum(np.where(here, counts, 0.0), axis=1), 1.0)
        spread = np.sqrt(state["noise"] / steps)
        unrest = np.where(state["changed"] > 0, 2.0, (state["suspect"] != 0).astype(np.float64))
        spells = state["slower"][:, -1], state["slower"][:, 0], state["past_slower"]
        return np.column_stack([points, times, slope, spread, unrest, state["usual"], *spells])

    def curves(self, records: NDArray[np.float64]) -> VisitedCurves:
        """The curves through the points."""
        columns = np.ascontiguousarray(records.T)
        points, times = np.split(columns[:-7], 2)
        # Places that no rank has filled would only cost time.
        filled = max(2, int(np.any(np.isfinite(points), axis=1).sum()))
        points, times = points[:filled], times[:filled]
        slope, spread, unrest, usual, *spells = columns[-7:]
        return VisitedCurves(points, times, slope, spread, unrest, usual, SlowSpells(*spells))


def _warned(state: ModelState) -> ModelState:
    """The state of ranks that are taken to be slower from now on, because their load says so."""
    heeded, scale = state["warned"] > 0, np.exp(state["warned"])
    most = np.where(heeded, _STEPS_AFTER_WARNING, np.inf)
    slower = state["slower"].copy()
    slower[:, -1] += np.where(heeded, state["warned"], 0.0)
    return {
        **state,
        "slower": slower,
        "seconds": state["seconds"] * scale[:, np.newaxis],
        "num_steps": np.minimum(state["num_steps"], most[:, np.newaxis]),
        "suspect": np.where(heeded, 0.0, state["suspect"]),
        "changed": np.where(heeded, 1.0, state["changed"]),
        "line": rescale(state["line"], scale, most),
    }


def _believed_noise(state: ModelState) -> NDArray[np.float64]:
    """Variance of a step for judging what is far, at least that which was seen, shape `[rows]`.

    A few rounds that happen to agree say little about noise: of thousands of ranks, some would
    take every later step for another pace.
    """
    seen, rounds = state["noise"], state["num_rounds"]
    mixed = _ROUNDS_OF_FIRST_NOISE * _FIRST_NOISE**2 + rounds * seen
    return np.asarray(np.maximum(seen, mixed / (_ROUNDS_OF_FIRST_NOISE + rounds)))


def _new_point_surprise(
    state: ModelState,
    b: NDArray[np.float64],
    t: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Log of how far a time at a new point is beyond what a tooth explains; 0 if it is not."""
    points, times = state["batch_size"], state["seconds"]
    samples = b[:, np.newaxis]
    rows = np.arange(len(b))
    smaller = np.where(points < samples, points, -np.inf)
    larger = np.where(points > samples, points, np.inf)
    left, right = np.argmax(smaller, axis=1), np.argmin(larger, axis=1)
    least = np.where(np.isfinite(smaller[rows, left]), times[rows, left], 0.0) / _TOOTH
    most = np.where(np.isfinite(larger[rows, right]), times[rows, right], np.inf) * _TOOTH
    with np.errstate(all="ignore"):
        slow = np.where(t > most, np.log(t / most) + np.log(_TOOTH), 0.0)
        fast = np.where(t < least, np.log(t / least) - np.log(_TOOTH), 0.0)
    off = np.log(t / expected)
    strange = (np.abs(off) > np.log(_STRANGE)) & (state["num_rounds"] > 1)
    return np.asarray(np.where(strange, off, slow + fast))
