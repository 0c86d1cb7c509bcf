"""Ranks that are taken to be equal, since machines often are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS

_PASSES = 4
"""Of expectation maximisation: by then the chances have settled to a few per cent."""


def nearly_even(problem: Problem) -> NDArray[np.bool_]:
    """Ranks whose shares differ from the even one by no more than those of equal ranks may.

    Args:
        problem: Has the plan in force.

    Returns:
        Which ranks, shape `[size]`: none where all shares together, in root mean square, differ
        from it by more.
    """
    mean = problem.global_batch_size / problem.current.size
    off = problem.current.samples / mean - 1
    is_even = np.sqrt(np.mean(off**2)) <= PRIORS.unequal_sd
    return np.asarray(is_even & (np.abs(off) <= PRIORS.unequal_sd))


def drawn_to_equality(
    curves: PosteriorCurves, problem: Problem, near: NDArray[np.bool_]
) -> PosteriorCurves:
    """The curves, those of equal ranks shrunk: means drawn together, variances smaller.

    With the even share, each of these ranks takes as long as the others, up to what is not known
    of it, or is off by more. Names are those of docs/adaptive.md.

    Args:
        curves: Of all ranks.
        problem: Has the plan in force.
        near: The ranks that may be equal, see `nearly_even`; shape `[size]`.
    """
    if np.count_nonzero(near) < 2:
        return curves
    samples = problem.current.samples
    even = np.full(samples.size, problem.global_batch_size / samples.size)
    # Ranks are equal in what they compute.
    computing, rounds = curves.computing[near], curves.rounds[near]
    off = np.log(curves.seconds(even)[near])
    off = (off - np.median(off)) / computing
    variance = (curves.deviations(even)[near] / computing) ** 2
    here = np.minimum(variance, (curves.deviations(samples)[near] / computing) ** 2)
    unequal, kappa, omega2 = _mixture(off, variance, rounds)
    # The mixture's mean and variance, in parts of what was seen and of its variance.
    kept = omega2 / (omega2 + kappa * variance)
    left = unequal * kept * (1 + (1 - unequal) * kept * off**2 / (kappa * variance))
    # What is chance is known as far as the noise is.
    surely = 1 - PRIORS.noise_rounds / rounds
    # What is not known of other batch sizes is not moved by it.
    shift, removed = np.zeros((2, samples.size))
    shift[near] = (unequal * kept - 1) * off * here / variance * computing
    removed[near] = np.maximum(1 - left, 0.0) * surely * here * computing**2
    return curves.shifted(shift, float(np.sqrt(kappa)), removed)


def _mixture(
    off: NDArray[np.float64], variance: NDArray[np.float64], rounds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, float]:
    """How likely each rank is not equal, and how much they differ: expectation maximisation.

    Args:
        off: Log seconds over those of the others, shape `[ranks]`.
        variance: What is not known of that, same shape.
        rounds: By how many rounds noise is known, same shape.

    Returns:
        Chances, same shape; the factor kappa on `variance`; omega^2, the variance of ranks that are
        not equal.
    """
    size = off.size
    equal, least = PRIORS.equal_ranks * size, PRIORS.unequal_sd**2
    known = PRIORS.noise_rounds + float(np.sum(rounds - PRIORS.noise_rounds))
    kappa, equal_part = 1.0, (equal + 0.5 * size) / (equal + size)
    omega2 = max(least, float(np.mean(off**2)))
    for _ in range(_PASSES):
        if_equal, if_not = kappa * variance, omega2 + kappa * variance
        # Noise whose variance is learnt has the tails of Student's distribution.
        tails = 0.5 * (rounds + 1) * np.log1p(off**2 / if_equal / rounds)
        odds = np.exp(np.clip(tails - 0.5 * off**2 / if_not, -300, 300))
        odds *= np.sqrt(if_equal / if_not)
        unequal = 1 - equal_part / (equal_part + (1 - equal_part) * odds)
        equal_part = (equal + 0.5 + float(np.sum(1 - unequal))) / (equal + 1.0 + size)
        shown = float(np.sum((1 - unequal) * off**2 / variance))
        kappa = (known + shown) / (known + float(np.sum(1 - unequal)))
        squares = float(np.sum(unequal * np.maximum(off**2 - if_equal, 0.0)))
        omega2 = max(least, squares / max(float(np.sum(unequal)), 1e-9))
    return np.asarray(unequal), kappa, omega2
