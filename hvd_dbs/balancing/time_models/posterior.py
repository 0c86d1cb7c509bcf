"""What is known of each rank's curve and pace, and how surely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_dbs.balancing.change_signal import ExpectedSteps
from hvd_dbs.balancing.exposed_communication import ExposedCommunication
from hvd_dbs.balancing.measurement import LEAST_SECONDS, MOST_SECONDS, Measurement
from hvd_dbs.balancing.point_curves import LEAST_ELASTICITY
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.event_counts import (
    cost_of_first,
    life_of,
    own_pause_rate,
    pooled_rates,
)
from hvd_dbs.balancing.time_models.noise import (
    NOISE,
    ROUGHNESS,
    SPREAD,
    begin_noise,
    pooled,
    within_rounds,
)
from hvd_dbs.balancing.time_models.posterior_update import (
    CAPACITY,
    LEAST_VARIANCE,
    OF_CURVE,
    SLOWNESS,
    absorb_slowness,
    curve_of,
    expire,
    learn,
    visit,
)
from hvd_dbs.balancing.time_models.slow_periods import no_periods, note_pace
from hvd_dbs.balancing.time_models.surprise import Round
from hvd_dbs.balancing.time_models.time_model import ModelState

_OTHERS, _EVENTS = 15, 3
_MOST_STEPS = 1e6


@dataclass(frozen=True)
class Posterior:
    """Log t_i(b) = g_i(b) + d_i: a Gaussian process, and by how much a rank is slow.

    t_i are busy times. The curves are of when ranks could be done, `ExposedCommunication`.

    State of a rank: mean and covariance of g at the last 8 batch sizes, whose prior is
    `CurvePrior`, and of d, which is 0 but in slow periods. A round of n steps may be *noise*
    (then it is a Kalman filter's update), a *jump* of the curve or a *change* of pace (g or d
    becomes uncertain, then the same update), a *return* (d becomes 0, and g what it was at the
    baseline speed) or a *pause* (which is left out, and remembered in case the next round shows it
    again). The mixture is replaced by the normal distribution with its mean and covariance. What
    is not slow, and what is faster than before, becomes the baseline speed: g takes over d.

    Variances of noise and of what kernels add to the curve are sums over counts of surprises. By
    how much the steps of a round differ is learnt beside them: pauses do not show in it. Rates
    of changes and pauses are counted, and drawn to those of all ranks (`pool`); so is noise,
    where curves are made of all records. Where surprises keep pointing the same way the pace
    drifts, and becomes uncertain accordingly.

    References:
        Harrison, Stevens, "Bayesian Forecasting", 1976, for filters of several hypotheses.
    """

    record_size = 3 * CAPACITY + _OTHERS

    def init(self, num_rows: int) -> ModelState:
        """Nothing visited."""
        curve = {
            "batch_size": np.full((num_rows, CAPACITY), np.nan),
            "mean": np.zeros((num_rows, CAPACITY + 1)),
            "covariance": np.zeros((num_rows, CAPACITY + 1, CAPACITY + 1)),
            "visited_at": np.zeros((num_rows, CAPACITY)),
            "jumps": np.zeros((num_rows, CAPACITY)),
        }
        return {
            **curve,
            **{f"baseline_{name}": rows for name, rows in curve.items()},
            "first": np.full((num_rows, 2), np.nan),
            "rounds": np.zeros(num_rows),
            "steps": np.zeros(num_rows),
            "noise": np.tile(NOISE, (num_rows, 1)),
            "spread": np.tile(SPREAD, (num_rows, 1)),
            "roughness": np.tile(ROUGHNESS, (num_rows, 1)),
            "trend": np.zeros(num_rows),
            "suspect": np.zeros((num_rows, 5)),
            "last_change": np.zeros(num_rows),
            "events": np.zeros((num_rows, 3)),
            "rates": np.tile([PRIORS.change_rate, PRIORS.pause_rate], (num_rows, 1)),
            "first_steps": np.zeros((num_rows, 3)),
            "communication": np.full((num_rows, 2), np.nan),
            **no_periods(num_rows),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Folds a round into the posterior of each rank."""
        usable, steps = measurement.usable, measurement.num_steps
        steps = np.where(steps >= 1, np.minimum(steps, _MOST_STEPS), 1.0)
        b = np.where(usable, measurement.batch_sizes, 1.0)
        y = np.log(np.where(usable, measurement.busy_seconds, 1.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            excess = np.log(measurement.busy_seconds / measurement.quartile_seconds)
            spread = np.log(measurement.median_seconds / measurement.quartile_seconds)
        is_known = (steps > 1) & (excess >= 0) & (measurement.quartile_seconds >= LEAST_SECONDS)
        excess, spread = (np.where(is_known, seen, np.nan) for seen in (excess, spread))
        new = {name: rows.copy() for name, rows in state.items()}
        begins = ~np.isfinite(state["first"][:, 0])
        # Pauses make steps longer, and nothing makes them shorter.
        longest = np.log1p(steps * np.expm1(excess))
        y = np.where(begins & (longest > PRIORS.change_sd), y - excess, y)
        most = np.log1p(np.expm1(PRIORS.change_sd) / steps)
        begin_noise(new, steps, np.minimum(excess, most), begins & np.isfinite(excess))
        new["first"][begins] = np.column_stack([b, y])[begins]
        wander = (PRIORS.wander_sd**2 * steps)[:, np.newaxis, np.newaxis]
        for name in ("covariance", "baseline_covariance"):
            new[name][:, :CAPACITY, :CAPACITY] += wander
        new["communication"] = _communication(state["communication"], measurement)
        new["steps"] += steps
        expire(new)
        slot, fresh = visit(new, b)
        seen = Round(b, y, excess, spread, steps, measurement.num_steps == 0)
        learn(new, seen, slot, fresh)
        at_baseline = note_pace(new, new["mean"][:, SLOWNESS], steps)
        absorb_slowness(new, at_baseline)
        for name in OF_CURVE:
            new[f"baseline_{name}"][at_baseline] = new[name][at_baseline]
        for name, rows in state.items():
            new[name][~usable] = rows[~usable]
        return new

    def record(self, state: ModelState) -> Rows:
        """Points, seconds, variances, and the rest of `PosteriorCurves`, by rank."""
        b, at = state["batch_size"], np.arange(CAPACITY)
        order = np.argsort(b, axis=1)  # NaN comes last.
        covariance, slower = state["covariance"], state["mean"][:, SLOWNESS:]
        variance = covariance[:, at, at] + 2 * covariance[:, at, SLOWNESS]
        variance += covariance[:, SLOWNESS, SLOWNESS:]
        variance = np.maximum(variance, LEAST_VARIANCE)
        seconds = np.exp(state["mean"][:, :CAPACITY] + slower)
        seconds[np.isnan(b)] = np.nan
        parts = [np.take_along_axis(part, order, axis=1) for part in (b, seconds, variance)]
        # Beyond the largest batch size the curve goes on as it does there.
        largest = np.max(np.where(np.isfinite(b), b, 1.0), axis=1)
        elasticity, elasticity_sd = curve_of(state, np.arange(len(b))).elasticity(largest)
        roughness = np.sqrt(state["roughness"][:, 0] / state["roughness"][:, 1])
        others = elasticity, elasticity_sd, roughness, *state["noise"].T, cost_of_first(state)
        rest = *state["communication"].T, slower[:, 0], *state["slow_periods"].T
        record = np.column_stack([*parts, *others, *rest, state["events"]])
        record[~np.isfinite(state["first"][:, 0])] = np.nan
        return record

    def expected_steps(self, state: ModelState) -> ExpectedSteps:
        """Of a step at the batch size that was measured last."""
        rows, b = np.arange(len(state["rounds"])), state["batch_size"]
        newest = np.where(np.isfinite(b), state["visited_at"], -1.0).argmax(axis=1)
        seconds = np.exp(state["mean"][rows, newest] + state["mean"][:, SLOWNESS])
        return ExpectedSteps(b[rows, newest], seconds, within_rounds(state), own_pause_rate(state))

    def pool(self, state: ModelState, records: Rows) -> ModelState:
        """Learns how often the ranks of the job change or pause: what is expected of each."""
        events = np.where(np.isfinite(records[:, -_EVENTS:]), records[:, -_EVENTS:], 0.0)
        return {**state, "rates": np.tile(pooled_rates(events), (len(state["rates"]), 1))}

    def curves(self, records: Rows) -> PosteriorCurves:
        """The curves that the records describe, with the communication that sticks out."""
        columns = np.ascontiguousarray(records.T)
        points, times, variance = columns[:-_OTHERS].reshape(3, CAPACITY, -1)
        others = columns[-_OTHERS:-_EVENTS]
        filled = max(2, int(np.any(np.isfinite(points), axis=1).sum()))
        points, times, variance = points[:filled], times[:filled], variance[:filled]
        elasticity, elasticity_sd, roughness, noise, rounds, first_seconds, *rest = others
        scale = pooled(noise, rounds)
        communication, periods = ExposedCommunication(*rest[:2]), SlowPeriods(*rest[2:])
        variance = variance * scale
        last = np.maximum(np.sum(np.isfinite(points), axis=0) - 1, 0)
        fixed, computing = np.zeros(len(noise)), np.ones(len(noise))
        ranks, communication = communication.known()
        if ranks.size:
            times = times.copy()
            times[:, ranks], of_points, fixed[ranks] = communication.finish(times[:, ranks])
            variance[:, ranks] *= of_points**2
            computing[ranks] = of_points[last[ranks], np.arange(ranks.size)]
        at_last = last, np.arange(len(noise))
        possible = np.clip(elasticity, LEAST_ELASTICITY, 1.0)
        # Points that say what cannot be are not of one curve, and not to be trusted elsewhere.
        elasticity_sd = np.hypot(elasticity_sd, elasticity - possible)
        elastic = possible * computing
        return PosteriorCurves(
            points,
            times,
            elastic * times[at_last] / points[at_last],
            fixed,
            variance,
            elasticity_sd * computing,
            roughness * computing,
            np.sqrt(scale * noise / rounds) * computing,
            rounds,
            first_seconds,
            life_of(columns[-_EVENTS:].T),
            computing,
            periods,
        )


def _communication(known: Rows, seen: Measurement) -> Rows:
    """Part of the busy time before the first bucket, and T_o, after a round; shape `[rows, 2]`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        part = seen.first_bucket_seconds / seen.busy_seconds
    overlap_seconds = seen.overlap_seconds
    is_known = (part > 0) & (part <= 1) & (overlap_seconds >= 0) & (overlap_seconds < MOST_SECONDS)
    is_known &= seen.num_steps != 0  # Kernels tune themselves before the first bucket.
    before = np.where(np.isfinite(known[:, 0]), known[:, 0], part)
    mean = before + (part - before) / PRIORS.trend_rounds
    new = np.column_stack([mean, overlap_seconds])
    return np.where(is_known[:, np.newaxis], new, known)
