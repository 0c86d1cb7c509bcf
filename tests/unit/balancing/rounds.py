"""Problems of a solver, rounds of a time model or a controller, and what comes of them."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Bounds, Controller, Measurement, Plan, strategies
from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, lower_value
from hvd_dbs.balancing.plan import Problem


def even(total, size, **bounds):
    allowed = Bounds.of(size, **bounds)
    return Problem(total, allowed, Plan.proportional(total, [1.0] * size, allowed))


def fold(model, rounds, state=None, **fields):
    """Rounds of one rank: (batch size, seconds) each."""
    state = model.init(1) if state is None else state
    for b, t in rounds:
        state = model.update(state, Measurement.of([b], [t], **fields))
    return state


def round_of(batch_size, steps):
    """What ranks with as many samples measure of steps, shape `[steps]` or `[steps, ranks]`."""
    steps = np.reshape(steps, (len(steps), -1))
    num_steps, size = steps.shape
    quartile, median = (lower_value(steps, parts) for parts in (QUARTILE, MEDIAN))
    fields = {"quartile_seconds": quartile, "median_seconds": median}
    fields["num_steps"] = [num_steps] * size
    return Measurement.of([batch_size] * size, steps.mean(axis=0), **fields)


def seconds_at(model, state, batch_size):
    curves = model.curves(model.record(state))
    return float(curves.seconds(np.array([float(batch_size)]))[0])


def trained(controller, factors, num_rounds, rng, noise=0.03, pauses=()):
    """Rounds of five noisy steps on affine ranks; the true step time of each."""
    seconds_of_steps = []
    for k in range(num_rounds):
        samples = controller.plan.samples
        seconds = (0.004 + 0.001 * samples) * factors
        seconds_of_steps.append(seconds.max())
        steps = 1 + noise * rng.standard_normal((5, len(samples)))
        if k in pauses:
            steps[0, k % len(samples)] += 2  # One step takes three times as long.
        steps *= seconds
        measured = Measurement.of(
            samples,
            steps.mean(axis=0),
            num_steps=np.full(len(samples), 5.0),
            quartile_seconds=lower_value(steps, QUARTILE),
            median_seconds=lower_value(steps, MEDIAN),
        )
        controller.decide(controller.observe(measured))
    return np.array(seconds_of_steps)


def controller_of(size, batch_size=64):
    return Controller(strategies.adaptive(), batch_size * size, Bounds.of(size, 1), size)


def over_after_a_disturbed_start(seed):
    """How far plans of three ranks are over the best one, in the median of steps 700 to 1,000.

    Steps differ by 5 %. Another job slows the first rank by 10 to 50 % in steps 7 to 11, when it
    has its first plans.
    """
    controller = Controller(strategies.adaptive(), 576, Bounds.of(3, 1), 3)
    rng = np.random.default_rng(seed)
    speeds, step, lengths = np.array([1.0, 0.7, 0.4]), 0, []
    while step < 1000:
        count = 6 if step == 0 else 1 if step < 24 else int(rng.integers(2, 5))
        samples = controller.plan.samples
        seconds = (0.01 + 0.0012 * samples) / speeds
        if step >= 700:
            lengths += [seconds.max()] * count
        seconds[0] *= 1 + rng.uniform(0.1, 0.5) * (7 <= step < 12)
        steps = seconds * np.exp(0.05 * rng.standard_normal((count, 3)))
        measurement = Measurement.of(
            samples,
            steps.mean(axis=0),
            num_steps=np.full(3, float(count)),
            quartile_seconds=lower_value(steps, QUARTILE),
        )
        controller.decide(controller.observe(measurement))
        step += count
    best = (576 * 0.0012 + 3 * 0.01) / speeds.sum()
    return np.median(lengths) / best - 1
