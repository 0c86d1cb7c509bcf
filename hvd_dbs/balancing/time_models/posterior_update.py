"""What a round changes in what is known of each rank: the arithmetic of `Posterior`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.posterior_curves import filled_tile, new_roughness
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import CurvePrior, Rows
from hvd_dbs.balancing.time_models.event_counts import count_events, count_first_steps, life_of
from hvd_dbs.balancing.time_models.noise import learn_spread, learn_variances, noise_of
from hvd_dbs.balancing.time_models.surprise import Round, Surprise, weigh
from hvd_dbs.balancing.time_models.time_model import ModelState

CAPACITY = 8
SLOWNESS = CAPACITY
"""Index of the slowness in mean and covariance, after the points."""
_SLOWNESS = np.eye(CAPACITY + 1)[SLOWNESS:]
OF_CURVE = ("batch_size", "mean", "covariance", "visited_at", "jumps")
"""Kept a second time, as they were at the baseline speed."""
LEAST_VARIANCE = 1e-12
_OF_TREND = 1 / (2 * PRIORS.trend_rounds - 1)
"""Variance of the trend of a steady rank, in variances of a surprise: of a mean with weights 1 / n
it is 1 / (2 n - 1)."""
_LONGEST_TREND = PRIORS.trend_sigmas**2 * _OF_TREND
"""Square of that mean, in deviations of a surprise, that is no chance."""


@dataclass(frozen=True)
class _Belief:
    """Normal distributions of points and slowness, and what they expect of the round.

    Attributes:
        mean: Shape `[rows, n]`.
        covariance: Shape `[rows, n, n]`.
        column: Covariance of each part with the round's log time, `[rows, n]`.
        z: Log time over what is expected, `[rows]`.
        variance: Of that, `[rows]`.
    """

    mean: Rows
    covariance: Rows
    column: Rows
    z: Rows
    variance: Rows

    def less_sure(self, parts: Rows, by: Rows | float) -> _Belief:
        """As if all parts that are 1 shared an unknown offset of variance `by`."""
        variance = np.broadcast_to(by, self.z.shape)
        column = variance[:, np.newaxis] * parts
        return replace(
            self,
            covariance=self.covariance + column[:, :, np.newaxis] * parts[:, np.newaxis, :],
            column=self.column + column,
            variance=self.variance + variance,
        )

    def updated(self) -> tuple[Rows, Rows]:
        """Mean and covariance after the round (Kalman)."""
        gain = self.column / self.variance[:, np.newaxis]
        less = gain[:, :, np.newaxis] * self.column[:, np.newaxis, :]
        return self.mean + gain * self.z[:, np.newaxis], self.covariance - less


def expire(state: ModelState) -> None:
    """Drops points not seen for longer than a pace lasts: the rank may have been slow then."""
    age = state["steps"][:, np.newaxis] - state["visited_at"]
    age[~np.isfinite(state["batch_size"])] = np.inf
    life = life_of(state["events"])[:, np.newaxis]
    _drop(state, (age > life) & (age > age.min(axis=1, keepdims=True)))


def _drop(state: ModelState, which: NDArray[np.bool_]) -> None:
    """Forgets these points, shape `[rows, capacity]`."""
    state["batch_size"][which] = np.nan
    state["mean"][:, :CAPACITY][which] = 0.0
    state["covariance"][:, :CAPACITY][which] = 0.0
    state["covariance"][:, :, :CAPACITY].swapaxes(1, 2)[which] = 0.0


def visit(state: ModelState, b: Rows) -> tuple[NDArray[np.intp], Rows]:
    """Begins a round: each rank's place of its batch size, made if need be, and what is new there.

    Returns:
        The place, shape `[rows]`, and the `new_roughness` there: 0 where the rank has had this
        batch size, same shape.
    """
    here = state["batch_size"] == b[:, np.newaxis]
    seen = here.any(axis=1)
    oldest = np.where(np.isfinite(state["batch_size"]), state["visited_at"], -1.0)
    slot = np.where(seen, here.argmax(axis=1), oldest.argmin(axis=1))
    away = np.abs(state["batch_size"] - b[:, np.newaxis])
    fresh = new_roughness(b, np.where(np.isfinite(away), away, np.inf).min(axis=1))
    rows = np.flatnonzero(~seen)
    if rows.size:
        at = slot[rows]
        curve = curve_of(state, rows)
        mean, variance, covariance = curve.at(b[rows])
        total, count = state["roughness"][rows].T
        variance += filled_tile(b[rows]) * total / count
        state["mean"][rows, at] = mean
        state["covariance"][rows, at, :] = state["covariance"][rows, :, at] = covariance
        state["covariance"][rows, at, at] = np.maximum(variance, LEAST_VARIANCE)
        state["jumps"][rows, at] = curve.jump_at(b[rows])
        state["batch_size"][rows, at] = b[rows]
    state["rounds"] += 1
    state["visited_at"][np.arange(b.size), slot] = state["steps"]
    return slot, fresh


def curve_of(state: ModelState, rows: NDArray[np.intp]) -> CurvePrior:
    """What is known of these ranks' curves."""
    roughness = state["roughness"][rows, 0] / state["roughness"][rows, 1]
    mean, covariance = state["mean"][rows, :CAPACITY], state["covariance"][rows, :CAPACITY]
    return CurvePrior(
        state["first"][rows],
        roughness,
        state["jumps"][rows],
        state["batch_size"][rows],
        mean,
        covariance,
    )


def learn(state: ModelState, this: Round, slot: NDArray[np.intp], fresh: Rows) -> None:
    """Folds a round into the posterior.

    Args:
        state: Of `Posterior`; it is changed.
        this: The round.
        slot: Which point its batch size is, shape `[rows]`.
        fresh: The `new_roughness` there, same shape; 0: the batch size is not new.
    """
    has_point, y = fresh == 0, this.log_seconds
    rows, noise = np.arange(y.size), noise_of(state, this.steps)
    # Where surprises keep pointing the same way all points of a curve are less sure.
    drift = has_point * np.maximum(state["trend"] ** 2 - _LONGEST_TREND, 0.0)
    belief = _expected(state, y, slot, noise)
    belief = belief.less_sure(1 - _SLOWNESS, drift * belief.variance)
    jumped = belief.less_sure(np.eye(CAPACITY + 1)[slot], PRIORS.jump_sd**2)
    changed = belief.less_sure(_SLOWNESS, PRIORS.change_sd**2)
    is_new, mean, z = ~has_point & (state["rounds"] > 1), belief.mean, belief.z
    slow = np.flatnonzero(mean[:, SLOWNESS] > PRIORS.slow)
    baseline, of_baseline = _at_baseline(state, this, noise, slow)
    baseline_z, baseline_variance = np.zeros(y.size), np.full(y.size, np.inf)
    baseline_z[slow], baseline_variance[slow] = of_baseline.z, of_baseline.variance
    surprise = Surprise(z, belief.variance, baseline_z, baseline_variance, is_new)
    chances = weigh(state, this, surprise)
    is_pause = chances.argmax(axis=0) == len(chances) - 1
    # What looks like a pause is remembered: the next round may show that it was none.
    suspect = np.stack([this.batch_sizes, z, noise, *chances[1:3]], axis=1)
    state["suspect"] = np.where(is_pause[:, np.newaxis], suspect, 0.0)
    # Where a pause is likeliest it is taken for sure.
    chances = np.where(is_pause, np.eye(len(chances))[:, -1:], chances)
    noisy, jump, change, back, pause = chances
    rough = is_new * fresh * state["roughness"][:, 0] / state["roughness"][:, 1]
    parts = {"noise": noise / belief.variance, "roughness": rough / belief.variance}
    # A pace that drifts is no noise.
    sigmas = z / np.sqrt(belief.variance)
    ratio = (sigmas - state["trend"]) ** 2 / (1 + _OF_TREND)
    scale = learn_variances(state, ratio, noisy, parts)[:, None, None]
    averaged, covariance = belief.updated()
    # Averages are known in proportion to the noise, which is only known by and by.
    of_noise, of_pause = (averaged, covariance * scale), (mean, belief.covariance)
    learn_spread(state, this.steps, this.spread, pause)
    _mix(
        state,
        np.stack([noisy, jump, change, pause + LEAST_VARIANCE]),
        [of_noise, jumped.updated(), changed.updated(), of_pause],
    )
    state["jumps"][rows, slot] += jump * z**2
    # What a pause hides is still to be seen.
    _drop(state, (np.arange(CAPACITY) == slot[:, None]) & (is_new & is_pause)[:, None])
    count_events(state, change, back, np.where(this.is_first, 0.0, pause), this.steps)
    count_first_steps(state, this.is_first, pause, np.asarray(np.exp(y) * -np.expm1(-z)))
    # One surprise alone, however large, is no trend.
    within = np.clip(sigmas, -PRIORS.trend_sigmas, PRIORS.trend_sigmas)
    trend = state["trend"] + noisy * has_point * (within - state["trend"]) / PRIORS.trend_rounds
    state["trend"] = np.where(change + back > 0.5, 0.0, trend)
    _go_back(state, slow, (baseline, of_baseline), chances)


def _expected(state: ModelState, y: Rows, slot: NDArray[np.intp], noise: Rows) -> _Belief:
    """What is known, of a round that is the sum of a point, the slowness, and noise."""
    rows, mean, covariance = np.arange(y.size), state["mean"], state["covariance"]
    column = covariance[rows, :, slot] + covariance[:, :, SLOWNESS]
    variance = column[rows, slot] + column[:, SLOWNESS] + noise
    return _Belief(mean, covariance, column, y - mean[rows, slot] - mean[:, SLOWNESS], variance)


def _at_baseline(
    state: ModelState, this: Round, noise: Rows, rows: NDArray[np.intp]
) -> tuple[ModelState, _Belief]:
    """These ranks at their baseline speed, and what they would expect of the round then."""
    same = {name: state[name][rows] for name in ("first", "roughness", "rounds", "steps")}
    baseline = {**same, **{name: state[f"baseline_{name}"][rows] for name in OF_CURVE}}
    slot, _ = visit(baseline, this.batch_sizes[rows])
    return baseline, _expected(baseline, this.log_seconds[rows], slot, noise[rows])


def _go_back(
    state: ModelState, slow: NDArray[np.intp], baseline: tuple[ModelState, _Belief], chances: Rows
) -> None:
    """Slow ranks that are at their baseline speed again: what was seen since says nothing of it.

    A change that ends a slow period shows no more than that: its round is part of both paces.
    """
    before, known = baseline
    _, _, change, back, _ = chances[:, slow]
    returned = back > 0.5
    for name, after in zip(("mean", "covariance"), known.updated(), strict=True):
        before[name][returned] = after[returned]
    is_over = (change > 0.5) & (state["mean"][slow, SLOWNESS] <= PRIORS.slow)
    which = returned | is_over
    for name in OF_CURVE:
        state[name][slow[which]] = before[name][which]


def _mix(state: ModelState, weights: Rows, parts: list[tuple[Rows, Rows]]) -> None:
    """Mean and covariance of the mixture of normal distributions."""
    weights = weights / weights.sum(axis=0)
    mean = sum(weight[:, None] * part for weight, (part, _) in zip(weights, parts, strict=True))
    covariance = np.zeros_like(parts[0][1])
    for weight, (part, inside) in zip(weights, parts, strict=True):
        off = part - mean
        covariance += weight[:, None, None] * (inside + off[:, :, None] * off[:, None, :])
    there = np.column_stack([np.isfinite(state["batch_size"]), np.ones(len(mean), dtype=bool)])
    state["mean"] = np.where(there, mean, 0.0)
    both = there[:, :, np.newaxis] & there[:, np.newaxis, :]
    state["covariance"] = np.where(both, covariance, 0.0)


def absorb_slowness(state: ModelState, which: NDArray[np.bool_]) -> None:
    """The curves of these ranks take over their slowness."""
    rows = np.flatnonzero(which & (state["covariance"][:, SLOWNESS, SLOWNESS] > 0))
    if not rows.size:
        return
    there = np.isfinite(state["batch_size"][rows])
    take_over = np.eye(CAPACITY + 1) + np.zeros((rows.size, 1, 1))
    take_over[:, :CAPACITY, SLOWNESS] = there
    take_over[:, SLOWNESS, SLOWNESS] = 0.0
    state["mean"][rows] = np.einsum("rij,rj->ri", take_over, state["mean"][rows])
    after = np.einsum("rij,rjk,rlk->ril", take_over, state["covariance"][rows], take_over)
    state["covariance"][rows] = after
