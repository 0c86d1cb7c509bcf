"""What is known of each rank's curve and pace, and how surely."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.priors import PRIORS, Priors
from hvd_dbs.balancing.time_models.time_model import ModelState

Rows = NDArray[np.float64]

_MOST_STEPS = 1e6
_CAPACITY = 8


class Posterior:
    """A Gaussian process for log t_i(b), moved by a few hypotheses about each surprise.

    Args:
        priors: All beliefs.
    """

    record_size = 3 * _CAPACITY + 10

    def __init__(self, priors: Priors = PRIORS) -> None:
        self.priors = priors

    def init(self, num_rows: int) -> ModelState:
        """Nothing visited."""
        prior = self.priors
        noise = [prior.noise_rounds * prior.noise_sd**2, prior.noise_rounds]
        return {
            "batch_size": np.full((num_rows, _CAPACITY), np.nan),
            "mean": np.zeros((num_rows, _CAPACITY)),
            "covariance": np.zeros((num_rows, _CAPACITY, _CAPACITY)),
            "visited_at": np.zeros((num_rows, _CAPACITY)),
            "first": np.full((num_rows, 2), np.nan),
            "current": np.zeros(num_rows),
            "rounds": np.zeros(num_rows),
            "noise": np.tile(noise, (num_rows, 1)),
            "teeth": np.tile([prior.teeth_sd**2, 1.0], (num_rows, 1)),
            "trend": np.zeros(num_rows),
            "suspect": np.zeros((num_rows, 2)),
            "events": np.zeros((num_rows, 3)),
            "slower": np.zeros(num_rows),
            "announced": np.zeros(num_rows),
            "peak": np.zeros(num_rows),
            "slow_periods": np.zeros((num_rows, 3)),
            "load": np.full(num_rows, np.nan),
            "load_jump": np.zeros(num_rows),
            "load_shift": np.zeros(num_rows),
            "load_sums": np.zeros((num_rows, 2)),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Folds a round into the posterior of each rank."""
        usable = measurement.usable
        steps = np.where(measurement.num_steps >= 1, measurement.num_steps, 1.0)
        steps = np.minimum(steps, _MOST_STEPS)
        b, y = measurement.batch_sizes, np.log(measurement.finish_seconds)
        b, y = np.where(usable, b, 1.0), np.where(usable, y, 0.0)
        new = {name: rows.copy() for name, rows in state.items()}
        begins = usable & ~np.isfinite(state["first"][:, 0])
        new["first"][begins] = np.column_stack([b, y])[begins]
        self._drift(new, steps)
        slot, seen = self._visit(new, b, usable)
        shift = self._learn(new, y, steps, slot, seen)
        self._learn_load(new, measurement.cpu_load, shift)
        for name, rows in state.items():
            keep = ~usable
            new[name][keep] = rows[keep]
        return new

    def _drift(self, state: ModelState, steps: Rows) -> None:
        """The pace wanders, more so where surprises keep pointing the same way."""
        variance = self.priors.drift_sd**2 * steps
        state["covariance"] += variance[:, np.newaxis, np.newaxis]

    def _prior(self, state: ModelState, rows: NDArray[np.intp], b: Rows) -> tuple[Rows, Rows]:
        """Mean and how the fixed part moves it, at batch sizes of shape `[rows, k]`."""
        f = self.priors.fixed_part
        first = state["first"][rows]
        x = b / first[:, :1]
        pace = f + (1 - f) * x
        return first[:, 1:] + np.log(pace), (1 - x) / pace

    def _kernel(self, state: ModelState, rows: NDArray[np.intp], b: Rows, c: Rows) -> Rows:
        """Prior covariance between batch sizes `[rows, k]` and `[rows, l]`, NaN where unvisited."""
        prior = self.priors
        _, phi_b = self._prior(state, rows, b)
        _, phi_c = self._prior(state, rows, c)
        teeth = state["teeth"][rows, 0] / state["teeth"][rows, 1]
        distance = np.abs(b[:, :, np.newaxis] - c[:, np.newaxis, :])
        jumps = teeth[:, np.newaxis, np.newaxis] * np.exp(-distance / prior.teeth_length)
        tilt = prior.fixed_part_sd**2 * phi_b[:, :, np.newaxis] * phi_c[:, np.newaxis, :]
        return 1.0 + tilt + jumps

    def _solver(self, state: ModelState, rows: NDArray[np.intp]) -> tuple[Rows, Rows]:
        """Inverse of the prior covariance at visited points, and what they differ by from it."""
        b = state["batch_size"][rows]
        there = np.isfinite(b)
        both = there[:, :, np.newaxis] & there[:, np.newaxis, :]
        kernel = np.where(both, self._kernel(state, rows, b, b), 0.0)
        at = np.arange(_CAPACITY)
        kernel[:, at, at] += np.where(there, 1e-8, 1.0)
        mean, _ = self._prior(state, rows, b)
        return np.linalg.inv(kernel), np.where(there, state["mean"][rows] - mean, 0.0)

    def _visit(
        self, state: ModelState, b: Rows, usable: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Each rank's place of its batch size, which is made where it has none."""
        here = state["batch_size"] == b[:, np.newaxis]
        seen = here.any(axis=1)
        oldest = np.where(np.isfinite(state["batch_size"]), state["visited_at"], -1.0)
        slot = np.where(seen, here.argmax(axis=1), oldest.argmin(axis=1))
        rows = np.flatnonzero(usable & ~seen)
        if rows.size:
            at = slot[rows]
            old = state["batch_size"][rows]
            there = np.isfinite(old)
            inverse, off = self._solver(state, rows)
            size = b[rows, np.newaxis]
            cross = np.where(there, self._kernel(state, rows, size, old)[:, 0], 0.0)
            weight = np.einsum("rj,rjk->rk", cross, inverse)
            own = self._kernel(state, rows, size, size)[:, 0, 0]
            prior, _ = self._prior(state, rows, size)
            covariance = state["covariance"][rows]
            spread = np.einsum("rj,rjk->rk", weight, covariance)
            variance = own - np.sum(weight * cross, axis=1) + np.sum(spread * weight, axis=1)
            state["mean"][rows, at] = prior[:, 0] + np.sum(weight * off, axis=1)
            state["covariance"][rows, at, :] = spread
            state["covariance"][rows, :, at] = spread
            state["covariance"][rows, at, at] = np.maximum(variance, 1e-10)
            state["batch_size"][rows, at] = b[rows]
        state["rounds"] += 1
        state["visited_at"][np.arange(b.size), slot] = state["rounds"]
        state["current"] = b
        return slot, seen

    def _learn(
        self, state: ModelState, y: Rows, steps: Rows, slot: NDArray[np.intp], seen: NDArray
    ) -> Rows:
        prior, rows = self.priors, np.arange(y.size)
        covariance, mean = state["covariance"], state["mean"]
        there = np.isfinite(state["batch_size"])
        noise = state["noise"][:, 0] / state["noise"][:, 1]
        z = y - mean[rows, slot]
        error = noise / steps
        column = covariance[rows, :, slot]
        known = column[rows, slot] + error
        # Surprises that keep pointing the same way: the pace wanders faster.
        extra = np.maximum(state["trend"] ** 2 - 1.7, 0.0) * seen * known
        both = there[:, :, np.newaxis] & there[:, np.newaxis, :]
        covariance += np.where(both, extra[:, np.newaxis, np.newaxis], 0.0)
        column = column + np.where(there, extra[:, np.newaxis], 0.0)
        known = known + extra
        # A change of pace moves all points, each by its own as well.
        jump = prior.change_sd**2
        own = (prior.other_curve * z) ** 2
        wide = column + np.where(there, jump, 0.0)
        wide[rows, slot] += own
        unknown = known + jump + own
        same, change, pause = self._weigh(state, z, known, unknown, steps)
        # What looks like a pause moves nothing, unless the next round shows it again.
        held_up = pause > np.maximum(same, change)
        state["suspect"] = np.where(held_up[:, np.newaxis], np.column_stack([z, change]), 0.0)
        same, change = np.where(held_up, 0.0, same), np.where(held_up, 0.0, change)
        gain, wide_gain = column / known[:, np.newaxis], wide / unknown[:, np.newaxis]
        moves = gain * z[:, np.newaxis], wide_gain * z[:, np.newaxis]
        move = same[:, np.newaxis] * moves[0] + change[:, np.newaxis] * moves[1]
        after = (
            covariance
            - same[:, None, None] * gain[:, :, None] * column[:, None, :]
            + change[:, None, None]
            * (
                np.where(both, jump, 0.0)
                + own[:, None, None] * (np.eye(_CAPACITY) * both)
                - wide_gain[:, :, None] * wide[:, None, :]
            )
            + same[:, None, None] * moves[0][:, :, None] * moves[0][:, None, :]
            + change[:, None, None] * moves[1][:, :, None] * moves[1][:, None, :]
            - move[:, :, None] * move[:, None, :]
        )
        state["mean"] = mean + np.where(there, move, 0.0)
        state["covariance"] = after
        keep = np.exp(-steps / prior.life_memory)[:, np.newaxis]
        state["events"] = state["events"] * keep + np.column_stack([change, pause, steps])
        shown = same * np.minimum(z**2 / known, 25.0)
        for name, which in (("noise", seen), ("teeth", ~seen & (state["rounds"] > 1))):
            total, count = state[name].T
            keep = np.where(count > prior.memory_rounds, 1 - 1 / prior.memory_rounds, 1.0)
            ratio = np.where(which, total / count * shown, 0.0)
            state[name] = np.column_stack([total * keep + ratio, count * keep + same * which])
        # Averages are known in proportion to the noise, which is only known by and by.
        ratio = state["noise"][:, 0] / state["noise"][:, 1] / noise
        state["covariance"] *= ratio[:, None, None]
        weight = 0.25 * same * seen
        trend = state["trend"] + weight * (z / np.sqrt(known) - state["trend"])
        state["trend"] = np.where(change > 0.5, 0.0, trend)
        shift = np.where(seen | (change > 0.5), move[rows, slot], 0.0)
        self._slow_periods(state, shift, steps)
        return np.asarray(move[rows, slot])

    def _weigh(
        self, state: ModelState, z: Rows, known: Rows, unknown: Rows, steps: Rows
    ) -> tuple[Rows, Rows, Rows]:
        """Chances that a surprise is noise, a change of pace, or a pause."""
        prior, rounds = self.priors, state["noise"][:, 1]
        changes, pauses, lasted = state["events"].T
        tails = -0.5 * (rounds + 1) * np.log1p(z**2 / known / rounds) - 0.5 * np.log(known)
        changes = steps * (changes + 0.5) / (lasted + 0.5 / prior.change_rate)
        change = np.log(changes) - 0.5 * z**2 / unknown - 0.5 * np.log(unknown)
        # Or the pace changed in the last round already, which looked like a pause.
        suspect, chance = state["suspect"].T
        again = np.log(chance) - 0.5 * (z - suspect) ** 2 / known - 0.5 * np.log(known)
        change = np.logaddexp(change, np.where(chance > 0, again, -np.inf))
        pauses = steps * (pauses + 0.5) / (lasted + 0.5 / prior.pause_rate)
        longer = 1 + steps * np.expm1(np.clip(z, 0, 50))
        off = (np.log(longer) - prior.pause_log) / prior.pause_sd
        pause = np.log(np.minimum(pauses, 1.0) * steps * np.exp(np.clip(z, 0, 50)) / longer / prior.pause_sd)
        # Rounds of three steps and more leave out what takes over three times as long.
        can_be = (z > 0) & ((steps < 3) | (longer < 3))
        pause = np.where(can_be, pause - 0.5 * off**2, -np.inf)
        logs = np.stack([tails, change, pause])
        logs -= logs.max(axis=0)
        chances = np.exp(logs)
        chances /= chances.sum(axis=0)
        return chances[0], chances[1], chances[2]

    def _slow_periods(self, state: ModelState, shift: Rows, steps: Rows) -> None:
        prior = self.priors
        slower = np.maximum(state["slower"] + shift, 0.0) * np.exp(-steps / prior.slow_memory)
        # What the load has announced is no surprise.
        announced = np.minimum(state["announced"], slower)
        is_slow, was = slower - announced > prior.slow, state["peak"] > 0
        state["announced"] = announced
        ends = was & ~is_slow & (shift < 0)
        ended = np.where(ends, 1.0, 0.0)
        quiet = np.where(is_slow, 0.0, steps)
        state["slow_periods"] = state["slow_periods"] + np.column_stack(
            [ended, ended * state["peak"], quiet]
        )
        state["peak"] = np.where(is_slow, np.maximum(state["peak"], slower), 0.0)
        state["slower"] = slower

    def _learn_load(self, state: ModelState, cpu_load: Rows, shift: Rows) -> None:
        """A rise of the load slows a rank beforehand, as far as earlier rises were followed."""
        prior = self.priors
        jump = state["load_jump"]
        answered = jump != 0
        pace = np.clip(state["load_shift"] + shift, -1.5, 1.5)
        sums = state["load_sums"] + np.where(
            answered[:, np.newaxis], np.column_stack([jump**2, jump * pace]), 0.0
        )
        reading = -np.log1p(-np.clip(cpu_load, 0.0, 0.8))
        usual = np.where(np.isfinite(state["load"]), state["load"], reading)
        off = np.nan_to_num(reading - usual)
        jumps = np.abs(off) > prior.load_jump
        factor = np.clip(sums[:, 1] / (sums[:, 0] + prior.load_unknown), 0.0, 1.5)
        # What the round has shown already was part of it.
        rise = np.where(jumps & (off > 0), np.maximum(factor * off - np.maximum(shift, 0.0), 0.0), 0.0)
        there = np.isfinite(state["batch_size"])
        state["mean"] += np.where(there, rise[:, np.newaxis], 0.0)
        both = there[:, :, np.newaxis] & there[:, np.newaxis, :]
        unsure = (0.5 * rise) ** 2  # Or it means nothing this time.
        state["covariance"] += np.where(both, unsure[:, np.newaxis, np.newaxis], 0.0)
        state["slower"] += rise
        state["announced"] += rise
        state["load"] = np.where(jumps, reading, usual + 0.2 * off)
        state["load_sums"] = sums
        state["load_jump"] = np.where(jumps, off, 0.0)
        state["load_shift"] = np.where(jumps, shift + rise, 0.0)

    def record(self, state: ModelState) -> Rows:
        """Points, log seconds and their deviations, and the other fields of `PosteriorCurves`."""
        b = state["batch_size"]
        rows = np.arange(len(b))
        order = np.argsort(np.where(np.isfinite(b), b, np.inf), axis=1)
        at = np.arange(_CAPACITY)
        sd = np.sqrt(np.maximum(state["covariance"][:, at, at], 1e-12))
        parts = [
            np.take_along_axis(part, order, axis=1)
            for part in (b, np.where(np.isfinite(b), state["mean"], np.nan), sd)
        ]
        slope, slope_sd = self._elasticity(state, rows)
        teeth = np.sqrt(state["teeth"][:, 0] / state["teeth"][:, 1])
        ends, sizes, quiet = state["slow_periods"].T
        changes, _, lasted = state["events"].T
        life = (lasted + self.priors.first_life) / (changes + 1)
        others = [slope, slope_sd, teeth, life, *state["noise"].T, state["slower"], ends, sizes, quiet]
        record = np.column_stack([*parts, *others])
        record[~np.isfinite(state["first"][:, 0])] = np.nan
        return record

    def _elasticity(self, state: ModelState, rows: NDArray[np.intp]) -> tuple[Rows, Rows]:
        """d log t / d log b at the batch size in use, and its deviation."""
        prior = self.priors
        f, variance = prior.fixed_part, prior.fixed_part_sd**2
        b = state["batch_size"]
        _, phi = self._prior(state, rows, b)
        inverse, off = self._solver(state, rows)
        phi = np.where(np.isfinite(b), phi, 0.0)
        weight = variance * np.einsum("rj,rjk->rk", phi, inverse)
        more = np.sum(weight * off, axis=1)
        left = variance - variance * np.sum(weight * phi, axis=1)
        left += np.einsum("rj,rjk,rk->r", weight, state["covariance"], weight)
        x = state["current"] / state["first"][:, 0]
        pace = f + (1 - f) * x
        turn = -x / pace**2
        slope = (1 - f) * x / pace + turn * more
        return slope, np.abs(turn) * np.sqrt(np.maximum(left, 0.0))

    def curves(self, records: Rows) -> PosteriorCurves:
        """The curves that the records describe."""
        columns = np.ascontiguousarray(records.T)
        points, logs, sd = np.split(columns[:-10], 3)
        filled = max(2, int(np.any(np.isfinite(points), axis=1).sum()))
        points, logs, sd = points[:filled], logs[:filled], sd[:filled]
        slope, slope_sd, teeth, life, noise, rounds, *periods = columns[-10:]
        # Where a rank's own noise is not known yet, that of all ranks tells more than the prior.
        prior = self.priors
        weight = prior.noise_rounds
        own, number = noise - weight * prior.noise_sd**2, rounds - weight
        pooled = (own.sum() + weight * prior.noise_sd**2) / (number.sum() + weight)
        sd = sd * np.sqrt((own + weight * pooled) / (number + weight) / (noise / rounds))
        times = np.exp(logs)
        last = np.maximum(np.sum(np.isfinite(points), axis=0) - 1, 0)
        at = last, np.arange(last.size)
        slope = np.clip(slope, 0.2, 1.0) * times[at] / points[at]
        return PosteriorCurves(
            points, times, slope, sd, slope_sd, teeth, life, rounds, SlowPeriods(*periods)
        )
