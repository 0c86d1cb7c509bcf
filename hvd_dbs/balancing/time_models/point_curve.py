"""What a few visited points tell of a curve that may have teeth, or be as smooth as a line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.time_models.line_fit import line
from hvd_dbs.balancing.time_models.time_model import ModelState

_ELASTICITY_SIGMA = 0.15
_TOOTH_SIGMA, _TOOTH_GUESSES = 0.03, 1.0
_FIRST_MISS, _FIRST_LINE_MISS, _MOST_MISS, _MISS_WEIGHT = 0.03, 0.06, 0.3, 0.25
_TOOTHED, _SMOOTH = 0.2, 0.5
"""What points miss by, over what the line does (both squared): with teeth, and without."""


def no_misses(num_rows: int) -> NDArray[np.float64]:
    """What `misses` begins with: points are thought to know better, shape `[rows, 2]`."""
    return np.tile([_FIRST_MISS**2, _FIRST_LINE_MISS**2], (num_rows, 1))


def misses(
    state: ModelState,
    b: NDArray[np.float64],
    t: NDArray[np.float64],
    returned: NDArray[np.bool_],
    here: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Squares of how far off points and line were where ranks came back, shape `[rows, 2]`.

    On teeth, a point knows better than the line what it takes to come back to it. On a smooth
    curve the line knows as much, and more where the pace has changed in between.
    """
    fitted = line(state["line"])
    remembered = state["seconds"][np.arange(len(b)), here]
    on_line = fitted.fixed + fitted.per_sample * b
    off = np.log(t[:, np.newaxis] / np.column_stack([remembered, on_line]))
    squared = np.minimum(off**2, _MOST_MISS**2)
    change = np.where(returned[:, np.newaxis], squared - state["misses"], 0.0)
    return np.asarray(state["misses"] + _MISS_WEIGHT * change)


def drawn_to_line(
    points: NDArray[np.float64],
    times: NDArray[np.float64],
    counts: NDArray[np.float64],
    state: ModelState,
) -> NDArray[np.float64]:
    """Times in which the line through all rounds has a say where the points lie on it.

    Points scatter around the line by teeth and by noise. What noise does not explain is teeth;
    each time is the mean of what was seen and the line, weighted by certainty. Where the line has
    told as well as the points what a return to them takes, it has all the say, but at the batch
    size in use.
    """
    fitted = line(state["line"])
    on_line = fitted.fixed[:, np.newaxis] + fitted.per_sample[:, np.newaxis] * points
    visited = counts > 0
    off = np.where(visited, times / on_line - 1.0, 0.0)
    noise = np.where(visited, state["noise"][:, np.newaxis] / np.maximum(counts, 1.0), 0.0)
    unexplained = np.sum(off**2 - noise, axis=1) + _TOOTH_GUESSES * _TOOTH_SIGMA**2
    teeth = np.maximum(unexplained / (visited.sum(axis=1) + _TOOTH_GUESSES), 1e-6)[:, np.newaxis]
    ratio = state["misses"][:, :1] / state["misses"][:, 1:]
    smooth = np.clip((ratio - _TOOTHED) / (_SMOOTH - _TOOTHED), 0.0, 1.0)
    smooth = np.where(points == state["current"][:, np.newaxis], 0.0, smooth)
    return np.asarray(times + (on_line - times) * np.maximum(noise / (noise + teeth), smooth))


def slope_beyond(
    points: NDArray[np.float64],
    times: NDArray[np.float64],
    counts: NDArray[np.float64],
    state: ModelState,
) -> NDArray[np.float64]:
    """Seconds per sample beyond the points, shape `[rows]`."""
    center = state["current"][:, np.newaxis]
    visited = counts > 0
    nearest = np.argmin(np.where(visited, np.abs(points - center), np.inf), axis=1)
    rows = np.arange(len(points))[:, np.newaxis]
    center, usual = points[rows, nearest[:, np.newaxis]], times[rows, nearest[:, np.newaxis]]
    x = np.where(visited, points / center - 1.0, 0.0)
    y = np.where(visited, times / usual - 1.0, 0.0)
    variance = 2 * state["noise"][:, np.newaxis] / np.maximum(counts, 1.0) + _TOOTH_SIGMA**2
    prior = 1.0 / _ELASTICITY_SIGMA**2
    elasticity = np.full_like(center, ELASTICITY)
    for _ in range(3):  # Points far off count less (Huber).
        off = np.abs(y - elasticity * x) / (2 * np.sqrt(variance))
        weights = np.where(visited, 1.0 / (variance * np.maximum(off, 1.0)), 0.0)
        up = np.sum(weights * x * y, axis=1, keepdims=True) + prior * ELASTICITY
        elasticity = up / (np.sum(weights * x * x, axis=1, keepdims=True) + prior)
    elasticity = np.clip(elasticity, 0.05, 1.0)
    return np.asarray((elasticity * usual / center)[:, 0])
