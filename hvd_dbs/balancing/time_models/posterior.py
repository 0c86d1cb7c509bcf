"""What is known of each rank's curve and pace, and how surely."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import CurvePrior, Rows
from hvd_dbs.balancing.time_models.slow_periods import no_periods, note_pace, read_load
from hvd_dbs.balancing.time_models.surprise import weigh
from hvd_dbs.balancing.time_models.time_model import ModelState

_CAPACITY = 8
_OTHERS = 10
_MOST_STEPS = 1e6
_LEAST_VARIANCE = 1e-12
_TREND_WEIGHT, _TREND_SQUARED = 0.25, 1.7
"""The mean of surprises in deviations, with this weight; its square is above the second with a
chance of one in a thousand where nothing drifts."""
_ELASTICITIES = (0.2, 1.0)


class Posterior:
    """Log t_i(b) is a Gaussian process; each round is weighed between three hypotheses.

    State of a rank: mean and covariance of log t at the last 8 batch sizes, whose prior is
    `CurvePrior`. A round of n steps with the surprise z may be *noise* (then it is a Kalman
    filter's update), a *change* of pace (all points become uncertain together, then the same
    update) or a *pause* (which is left out, and remembered in case the next round shows it again).
    Of the first two, the mixture is replaced by the normal distribution with its mean and
    covariance. Variances of noise and of the curve's jumps are inverse-gamma means, learnt from
    surprises; rates of changes and pauses are counted. Where surprises keep pointing the same
    way the pace drifts, and becomes uncertain accordingly.

    References:
        Harrison, Stevens, "Bayesian Forecasting", 1976, for filters of several hypotheses.
    """

    record_size = 3 * _CAPACITY + _OTHERS

    def init(self, num_rows: int) -> ModelState:
        """Nothing visited."""
        noise = [PRIORS.noise_rounds * PRIORS.noise_sd**2, PRIORS.noise_rounds]
        points = (num_rows, _CAPACITY)
        return {
            "batch_size": np.full(points, np.nan),
            "mean": np.zeros(points),
            "covariance": np.zeros((*points, _CAPACITY)),
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
        new["covariance"] += (PRIORS.drift_sd**2 * steps)[:, np.newaxis, np.newaxis]
        slot, seen = _visit(new, b)
        shift, changed = _learn(new, y, steps, slot, seen)
        note_pace(new, np.where(seen | changed, shift, 0.0), steps)
        rise = read_load(new, measurement.cpu_load, shift)
        new["mean"] += rise[:, np.newaxis]
        # Or the load means nothing this time.
        new["covariance"] += ((0.5 * rise) ** 2)[:, np.newaxis, np.newaxis]
        for name, rows in state.items():
            new[name][~usable] = rows[~usable]
        return new

    def record(self, state: ModelState) -> Rows:
        """Points, log seconds, deviations, and the rest of `PosteriorCurves`, by rank."""
        b, at = state["batch_size"], np.arange(_CAPACITY)
        order = np.argsort(np.where(np.isfinite(b), b, np.inf), axis=1)
        sd = np.sqrt(np.maximum(state["covariance"][:, at, at], _LEAST_VARIANCE))
        parts = [np.take_along_axis(part, order, axis=1) for part in (b, state["mean"], sd)]
        elasticity = _curve(state, np.arange(len(b))).elasticity(state["current"])
        changes, _, lasted = state["events"].T
        life = (lasted + PRIORS.first_life) / (changes + 1)
        teeth = np.sqrt(state["teeth"][:, 0] / state["teeth"][:, 1])
        periods = state["slower"], *state["slow_periods"].T
        record = np.column_stack([*parts, *elasticity, teeth, life, *state["noise"].T, *periods])
        record[~np.isfinite(state["first"][:, 0])] = np.nan
        return record

    def curves(self, records: Rows) -> PosteriorCurves:
        """The curves that the records describe."""
        columns = np.ascontiguousarray(records.T)
        points, logs, sd = np.split(columns[:-_OTHERS], 3)
        filled = max(2, int(np.any(np.isfinite(points), axis=1).sum()))
        points, logs, sd = points[:filled], logs[:filled], sd[:filled]
        elasticity, elasticity_sd, teeth, life, noise, rounds, *periods = columns[-_OTHERS:]
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
            SlowPeriods(*periods),
        )


def _pooled(noise: Rows, rounds: Rows) -> Rows:
    """Factor on deviations: while a rank's noise is unknown, that of all ranks is its prior."""
    weight, prior = PRIORS.noise_rounds, PRIORS.noise_rounds * PRIORS.noise_sd**2
    own, number = noise - prior, rounds - weight
    common = (own.sum() + prior) / (number.sum() + weight)
    return np.asarray(np.sqrt((own + weight * common) / (number + weight) / (noise / rounds)))


def _curve(state: ModelState, rows: NDArray[np.intp]) -> CurvePrior:
    teeth = state["teeth"][rows, 0] / state["teeth"][rows, 1]
    names = ("batch_size", "mean", "covariance")
    return CurvePrior(state["first"][rows], teeth, *(state[name][rows] for name in names))


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
) -> tuple[Rows, NDArray[np.bool_]]:
    """The posterior after a time of exp(y); returns how far the point moved, and by a change."""
    rows, at, there = np.arange(y.size), np.arange(_CAPACITY), np.isfinite(state["batch_size"])
    covariance = state["covariance"]
    noise = state["noise"][:, 0] / state["noise"][:, 1]
    z = y - state["mean"][rows, slot]
    known = covariance[rows, slot, slot] + noise / steps
    drift = seen * known * np.maximum(state["trend"] ** 2 - _TREND_SQUARED, 0.0)
    known += drift
    covariance += drift[:, np.newaxis, np.newaxis]
    # A change of pace moves all points, and each a little by its own.
    jump, own = PRIORS.change_sd**2, (PRIORS.other_curve * z) ** 2
    unknown = known + jump + own
    noisy, change, pause = weigh(state, z, known, unknown, steps)
    held_up = pause > np.maximum(noisy, change)
    state["suspect"] = np.where(held_up[:, np.newaxis], np.column_stack([z, change]), 0.0)
    noisy, change = np.where(held_up, 0.0, noisy), np.where(held_up, 0.0, change)
    column = covariance[rows, :, slot]
    wide = column + jump
    wide[rows, slot] += own
    move, wide_move = (part * (z / of)[:, None] for part, of in ((column, known), (wide, unknown)))
    moved = noisy[:, None] * move + change[:, None] * wide_move
    # The covariance of a mixture: within its parts, and between their means.
    after = covariance - _outer(noisy / known, column, column)
    after += _outer(noisy, move, move) + _outer(change, wide_move, wide_move)
    after += (change * jump)[:, None, None] - _outer(change / unknown, wide, wide)
    after[:, at, at] += (change * own)[:, None]
    after -= _outer(np.ones_like(z), moved, moved)
    state["mean"] = np.where(there, state["mean"] + moved, 0.0)
    state["covariance"] = np.where(there[:, :, None] & there[:, None, :], after, 0.0)
    _learn_noise(state, z, known, noisy, seen)
    keep = np.exp(-steps / PRIORS.life_memory)[:, np.newaxis]
    state["events"] = state["events"] * keep + np.column_stack([change, pause, steps])
    trend = state["trend"] + _TREND_WEIGHT * noisy * seen * (z / np.sqrt(known) - state["trend"])
    state["trend"] = np.where(change > 0.5, 0.0, trend)
    return moved[rows, slot], change > 0.5


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


def _outer(weight: Rows, first: Rows, second: Rows) -> Rows:
    return np.asarray(weight[:, None, None] * first[:, :, None] * second[:, None, :])
