"""What is known of each rank's curve and pace, and how surely."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import CurvePrior, Rows
from hvd_dbs.balancing.time_models.slow_periods import no_periods, note_pace, read_load
from hvd_dbs.balancing.time_models.surprise import Surprise, weigh
from hvd_dbs.balancing.time_models.time_model import ModelState

_CAPACITY = 8
_SLOWNESS = _CAPACITY
"""Where mean and covariance hold the slowness, behind the points."""
_OTHERS = 6
_MOST_STEPS = 1e6
_LEAST_VARIANCE = 1e-12
_OF_CURVE = ("batch_size", "mean", "covariance", "visited_at")
"""Kept a second time, as they were at the usual pace."""
_TREND_WEIGHT, _TREND_SQUARED = 0.25, 1.7
"""The mean of surprises in deviations, with this weight; its square is above the second with a
chance of one in a thousand where nothing drifts."""
_ELASTICITIES = (0.2, 1.0)


class Posterior:
    """Log t_i(b) = g_i(b) + d_i: a Gaussian process, and how much slower than usual a rank is.

    State of a rank: mean and covariance of g at the last 8 batch sizes, whose prior is
    `CurvePrior`, and of d, which is 0 but in slow periods. A round of n steps may be *noise*
    (then it is a Kalman filter's update), a *change* (d becomes uncertain, then the same update),
    a *return* (d becomes 0, and g what it was at the usual pace) or a *pause* (which is left out,
    and remembered in case the next round shows it again). The mixture is replaced by the normal
    distribution with its mean and covariance. What lasts, and what is faster than before, becomes
    the usual pace: g takes over d.

    Variances of noise and of the curve's jumps are inverse-gamma means, learnt from surprises;
    rates of changes and pauses are counted. Where surprises keep pointing the same way the pace
    drifts, and becomes uncertain accordingly.

    References:
        Harrison, Stevens, "Bayesian Forecasting", 1976, for filters of several hypotheses.
    """

    record_size = 3 * _CAPACITY + _OTHERS

    def init(self, num_rows: int) -> ModelState:
        """Nothing visited."""
        noise = [PRIORS.noise_rounds * PRIORS.noise_sd**2, PRIORS.noise_rounds]
        points, both = (num_rows, _CAPACITY), (num_rows, _CAPACITY + 1)
        return {
            "batch_size": np.full(points, np.nan),
            "mean": np.zeros(both),
            "covariance": np.zeros((*both, _CAPACITY + 1)),
            "visited_at": np.zeros(points),
            "first": np.full((num_rows, 2), np.nan),
            "current": np.zeros(num_rows),
            "rounds": np.zeros(num_rows),
            "noise": np.tile(noise, (num_rows, 1)),
            "teeth": np.tile([PRIORS.teeth_sd**2, 1.0], (num_rows, 1)),
            "trend": np.zeros(num_rows),
            "suspect": np.zeros((num_rows, 2)),
            "events": np.zeros((num_rows, 3)),
            **no_periods(num_rows),
            "usual_batch_size": np.full(points, np.nan),
            "usual_mean": np.zeros(both),
            "usual_covariance": np.zeros((*both, _CAPACITY + 1)),
            "usual_visited_at": np.zeros(points),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Folds a round into the posterior of each rank."""
        usable, steps = measurement.usable, measurement.num_steps
        steps = np.where(steps >= 1, np.minimum(steps, _MOST_STEPS), 1.0)
        b = np.where(usable, measurement.batch_sizes, 1.0)
        y = np.log(np.where(usable, measurement.finish_seconds, 1.0))
        new = {name: rows.copy() for name, rows in state.items()}
        begins = ~np.isfinite(state["first"][:, 0])
        new["first"][begins] = np.column_stack([b, y])[begins]
        wander = (PRIORS.drift_sd**2 * steps)[:, np.newaxis, np.newaxis]
        for name in ("covariance", "usual_covariance"):
            new[name][:, :_CAPACITY, :_CAPACITY] += wander
        away = np.where(begins, 0.0, _away(b, state["current"]))
        other = PRIORS.other_curve * state["mean"][:, _SLOWNESS] * away
        new["covariance"][:, _SLOWNESS, _SLOWNESS] += other**2
        slot, seen = _visit(new, b)
        shift = _learn(new, y, steps, slot, seen)
        is_usual = note_pace(new, new["mean"][:, _SLOWNESS], steps)
        _make_usual(new, is_usual)
        for name in _OF_CURVE:
            new[f"usual_{name}"][is_usual] = new[name][is_usual]
        rise = read_load(new, measurement.cpu_load, shift)
        new["mean"][:, _SLOWNESS] += rise
        # Or the load means nothing this time.
        new["covariance"][:, _SLOWNESS, _SLOWNESS] += (0.5 * rise) ** 2
        for name, rows in state.items():
            new[name][~usable] = rows[~usable]
        return new

    def record(self, state: ModelState) -> Rows:
        """Points, log seconds, deviations, and the rest of `PosteriorCurves`, by rank."""
        b, at = state["batch_size"], np.arange(_CAPACITY)
        order = np.argsort(np.where(np.isfinite(b), b, np.inf), axis=1)
        covariance, slower = state["covariance"], state["mean"][:, _SLOWNESS:]
        variance = covariance[:, at, at] + 2 * covariance[:, at, _SLOWNESS]
        variance += covariance[:, _SLOWNESS, _SLOWNESS:]
        # A rank may be slower by another part with other batch sizes.
        tilt = PRIORS.other_curve * slower
        away = np.nan_to_num(_away(b, state["current"][:, np.newaxis]))
        sd = np.sqrt(np.maximum(variance + (tilt * away) ** 2, _LEAST_VARIANCE))
        mean = state["mean"][:, :_CAPACITY] + slower
        parts = [np.take_along_axis(part, order, axis=1) for part in (b, mean, sd)]
        elasticity, elasticity_sd = _curve(state, np.arange(len(b))).elasticity(state["current"])
        changes, _, lasted = state["events"].T
        life = (lasted + PRIORS.first_life) / (changes + 1)
        teeth = np.sqrt(state["teeth"][:, 0] / state["teeth"][:, 1])
        others = elasticity, np.hypot(elasticity_sd, tilt[:, 0]), teeth, life, *state["noise"].T
        record = np.column_stack([*parts, *others])
        record[~np.isfinite(state["first"][:, 0])] = np.nan
        return record

    def curves(self, records: Rows) -> PosteriorCurves:
        """The curves that the records describe."""
        columns = np.ascontiguousarray(records.T)
        points, logs, sd = np.split(columns[:-_OTHERS], 3)
        filled = max(2, int(np.any(np.isfinite(points), axis=1).sum()))
        points, logs, sd = points[:filled], logs[:filled], sd[:filled]
        elasticity, elasticity_sd, teeth, life, noise, rounds = columns[-_OTHERS:]
        times = np.where(np.isfinite(points), np.exp(logs), np.nan)
        last = np.maximum(np.sum(np.isfinite(points), axis=0) - 1, 0), np.arange(len(life))
        return PosteriorCurves(
            points,
            times,
            np.clip(elasticity, *_ELASTICITIES) * times[last] / points[last],
            sd * _pooled(noise, rounds),
            elasticity_sd,
            teeth,
            life,
            rounds,
        )


def _away(b: Rows, current: Rows) -> Rows:
    """How far off a batch size is, as far as it makes slowness another one."""
    return np.clip(np.log(b / np.maximum(current, 1.0)), -1.0, 1.0)


def _pooled(noise: Rows, rounds: Rows) -> Rows:
    """Factor on deviations: while a rank's noise is unknown, that of all ranks is its prior."""
    weight, prior = PRIORS.noise_rounds, PRIORS.noise_rounds * PRIORS.noise_sd**2
    own, number = noise - prior, rounds - weight
    common = (own.sum() + prior) / (number.sum() + weight)
    return np.asarray(np.sqrt((own + weight * common) / (number + weight) / (noise / rounds)))


def _curve(state: ModelState, rows: NDArray[np.intp]) -> CurvePrior:
    teeth = state["teeth"][rows, 0] / state["teeth"][rows, 1]
    mean, covariance = state["mean"][rows, :_CAPACITY], state["covariance"][rows, :_CAPACITY]
    return CurvePrior(state["first"][rows], teeth, state["batch_size"][rows], mean, covariance)


def _visit(state: ModelState, b: Rows) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Each rank's place of its batch size, made if need be, and whether it was there."""
    here = state["batch_size"] == b[:, np.newaxis]
    seen = here.any(axis=1)
    oldest = np.where(np.isfinite(state["batch_size"]), state["visited_at"], -1.0)
    slot = np.where(seen, here.argmax(axis=1), oldest.argmin(axis=1))
    rows = np.flatnonzero(~seen)
    if rows.size:
        at = slot[rows]
        mean, variance, covariance = _curve(state, rows).at(b[rows])
        state["mean"][rows, at] = mean
        state["covariance"][rows, at, :] = state["covariance"][rows, :, at] = covariance
        state["covariance"][rows, at, at] = np.maximum(variance, _LEAST_VARIANCE)
        state["batch_size"][rows, at] = b[rows]
    state["rounds"] += 1
    state["visited_at"][np.arange(b.size), slot] = state["rounds"]
    state["current"] = b
    return slot, seen


def _learn(
    state: ModelState, y: Rows, steps: Rows, slot: NDArray[np.intp], seen: NDArray[np.bool_]
) -> Rows:
    """The posterior after a time of exp(y); returns by how much the rank's pace has changed."""
    rows, points = np.arange(y.size), slice(_CAPACITY)
    mean, covariance = state["mean"], state["covariance"]
    noise = state["noise"][:, 0] / state["noise"][:, 1] / steps
    column = covariance[rows, :, slot] + covariance[:, :, _SLOWNESS]
    z = y - mean[rows, slot] - mean[:, _SLOWNESS]
    known = column[rows, slot] + column[:, _SLOWNESS] + noise
    drift = seen * known * np.maximum(state["trend"] ** 2 - _TREND_SQUARED, 0.0)
    known += drift
    covariance[:, points, points] += drift[:, np.newaxis, np.newaxis]
    column[:, points] += drift[:, np.newaxis]
    # The pace has changed: the slowness becomes uncertain.
    changed, changed_column = covariance.copy(), column.copy()
    changed[:, _SLOWNESS, _SLOWNESS] += PRIORS.change_sd**2
    changed_column[:, _SLOWNESS] += PRIORS.change_sd**2
    unknown = known + PRIORS.change_sd**2
    # It is the usual one again, and the curve what it was before.
    before = _usual(state, rows)
    expected, usual_known, _ = _curve(before, rows).at(state["current"])
    usual_z, usual_known = y - expected, np.maximum(usual_known, _LEAST_VARIANCE) + noise
    surprise = Surprise(z, known, unknown, usual_z, usual_known, steps)
    noisy, change, back, pause = weigh(state, surprise, mean[:, _SLOWNESS] > PRIORS.slow)
    held_up = pause > np.maximum(np.maximum(noisy, change), back)
    state["suspect"] = np.where(held_up[:, np.newaxis], np.column_stack([z, change]), 0.0)
    chances = np.stack([noisy, change, back, pause])
    noisy, change, back, pause = np.where(held_up, [[0.0], [0.0], [0.0], [1.0]], chances)
    parts = [
        _kalman(mean, covariance, column, z, known),
        _kalman(mean, changed, changed_column, z, unknown),
        (mean, covariance),
    ]
    weights = np.stack([noisy, change, pause + _LEAST_VARIANCE])
    state["mean"], state["covariance"] = _mixture(weights / weights.sum(axis=0), parts)
    there = np.column_stack([np.isfinite(state["batch_size"]), np.ones(y.size, dtype=bool)])
    state["mean"][~there] = 0.0
    state["covariance"][~(there[:, :, np.newaxis] & there[:, np.newaxis, :])] = 0.0
    _learn_noise(state, z, known, noisy, seen)
    # A change that the next round takes back was a pause.
    was_pause = back * (state["rounds"] - state["slow_since"] <= 1)
    keep = np.exp(-steps / PRIORS.life_memory)[:, np.newaxis]
    new = np.column_stack([change + back - 2 * was_pause, pause + was_pause, steps])
    state["events"] = np.maximum(state["events"] * keep + new, 0.0)
    trend = state["trend"] + _TREND_WEIGHT * noisy * seen * (z / np.sqrt(known) - state["trend"])
    is_new = change + back > 0.5
    state["trend"] = np.where(is_new, 0.0, trend)
    moved = state["mean"] - mean
    shift = np.where(seen | is_new, moved[rows, slot] + moved[:, _SLOWNESS], 0.0)
    _go_back(state, np.flatnonzero(back > 0.5), y, noise)
    return np.where(back > 0.5, z, shift)


def _usual(state: ModelState, rows: NDArray[np.intp]) -> ModelState:
    """The same ranks at their usual pace."""
    same = {name: state[name][rows] for name in ("first", "teeth", "current", "rounds")}
    return {**same, **{name: state[f"usual_{name}"][rows] for name in _OF_CURVE}}


def _go_back(state: ModelState, rows: NDArray[np.intp], y: Rows, noise: Rows) -> None:
    """These ranks are at their usual pace again: what was seen since says nothing of it."""
    usual, all_of_them = _usual(state, rows), np.arange(rows.size)
    slot, _ = _visit(usual, state["current"][rows])
    column = usual["covariance"][all_of_them, :, slot]
    z, known = y[rows] - usual["mean"][all_of_them, slot], column[all_of_them, slot]
    after = _kalman(usual["mean"], usual["covariance"], column, z, known + noise[rows])
    usual["mean"], usual["covariance"] = after
    for name in _OF_CURVE:
        state[name][rows] = usual[name]


def _kalman(
    mean: Rows, covariance: Rows, column: Rows, z: Rows, variance: Rows
) -> tuple[Rows, Rows]:
    """Mean and covariance after an observation off by z, of that variance."""
    gain = column / variance[:, np.newaxis]
    return mean + gain * z[:, np.newaxis], covariance - gain[:, :, None] * column[:, None, :]


def _mixture(weights: Rows, parts: list[tuple[Rows, Rows]]) -> tuple[Rows, Rows]:
    """Mean and covariance of a mixture of normal distributions."""
    mean = sum(weight[:, None] * part for weight, (part, _) in zip(weights, parts, strict=True))
    covariance = np.zeros_like(parts[0][1])
    for weight, (part, inside) in zip(weights, parts, strict=True):
        off = part - mean
        covariance += weight[:, None, None] * (inside + off[:, :, None] * off[:, None, :])
    return np.asarray(mean), covariance


def _make_usual(state: ModelState, becomes_usual: NDArray[np.bool_]) -> None:
    """The curves of these ranks take over their slowness."""
    rows = np.flatnonzero(becomes_usual & (state["mean"][:, _SLOWNESS] != 0.0))
    there = np.isfinite(state["batch_size"][rows])
    take_over = np.eye(_CAPACITY + 1) + np.zeros((rows.size, 1, 1))
    take_over[:, :_CAPACITY, _SLOWNESS] = there
    take_over[:, _SLOWNESS, _SLOWNESS] = 0.0
    state["mean"][rows] = np.einsum("rij,rj->ri", take_over, state["mean"][rows])
    after = np.einsum("rij,rjk,rlk->ril", take_over, state["covariance"][rows], take_over)
    state["covariance"][rows] = after


def _learn_noise(
    state: ModelState, z: Rows, known: Rows, noisy: Rows, seen: NDArray[np.bool_]
) -> None:
    """Surprises where a rank has been before show noise, those at new batch sizes jumps."""
    before = state["noise"][:, 0] / state["noise"][:, 1]
    shown = noisy * np.minimum(z**2 / known, 25.0)
    for name, counts in (("noise", seen), ("teeth", ~seen & (state["rounds"] > 1))):
        total, count = state[name].T
        keep = np.where(count > PRIORS.memory_rounds, 1 - 1 / PRIORS.memory_rounds, 1.0)
        new = np.where(counts, total / count * shown, 0.0), noisy * counts
        state[name] = np.column_stack([total * keep + new[0], count * keep + new[1]])
    # Averages are known in proportion to the noise, which is only known by and by.
    ratio = state["noise"][:, 0] / state["noise"][:, 1] / before
    state["covariance"] *= ratio[:, np.newaxis, np.newaxis]
