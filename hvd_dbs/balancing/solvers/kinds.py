"""Ranks of a kind, since machines often are equal, or nearly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.plan import Plan
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS

_PASSES = 4
"""Of expectation maximisation: by then the chances have settled to a few per cent."""
_CHANCE = 2.0
"""Standard errors that are taken off what ranks of a kind seem to differ by."""


@dataclass(frozen=True)
class Kinds:
    """Ranks that may be machines of a kind: those whose shares are alike. Shapes are `[size]`.

    Attributes:
        number: Which kind each rank is of, from 0 on.
        together: Whether its kind has further ranks, and shares that are alike.
        batch_sizes: The mean of its kind; of other ranks, their own.
    """

    number: NDArray[np.intp]
    together: NDArray[np.bool_]
    batch_sizes: NDArray[np.float64]

    @classmethod
    def of(cls, plan: Plan) -> Kinds:
        """The kinds that a plan shows.

        Sorted shares begin another kind where one is larger than the one before by more than
        shares of a kind differ.
        """
        samples = plan.samples
        ordered = np.sort(samples)
        # Nothing is far from one sample.
        begins = ordered[1:] > np.maximum(ordered[:-1], 0.5) * np.exp(PRIORS.unequal_sd)
        starts = np.concatenate([[0], np.flatnonzero(begins) + 1])
        count = np.diff(starts, append=samples.size)
        mean = np.add.reduceat(ordered, starts) / count
        off = ordered / np.maximum(np.repeat(mean, count), 1.0) - 1
        spread = np.sqrt(np.add.reduceat(off**2, starts) / count)
        number = np.searchsorted(ordered[starts], samples, side="right") - 1
        together = ((count > 1) & (spread <= PRIORS.unequal_sd))[number] & (samples > 0)
        is_even = np.array_equal(samples[together], mean[number[together]])
        means = samples if is_even else np.where(together, mean[number], samples)
        return cls(number, together, means)


def drawn_together(curves: PosteriorCurves, plan: Plan, kinds: Kinds) -> PosteriorCurves:
    """The curves, those of ranks of a kind shrunk: means drawn together, variances smaller.

    With the mean batch size of their kind, ranks take as long as the others, up to what is not
    known of them and what ranks of a kind differ by, or are off by more. Names are those of
    docs/adaptive.md.

    Args:
        curves: Of all ranks.
        plan: The plan in force.
        kinds: Those that it shows.
    """
    some = np.flatnonzero(kinds.together & ~_may_be_slow_again(curves, plan))
    if not some.size:
        return curves
    # Ranks are alike in what they compute.
    computing = curves.computing[some]
    log_seconds = np.log(curves.seconds(kinds.batch_sizes)[some])
    off = (log_seconds - _medians(log_seconds, kinds.number[some])) / computing
    variance = (curves.deviations(kinds.batch_sizes)[some] / computing) ** 2
    here = np.minimum(variance, (curves.deviations(plan.samples)[some] / computing) ** 2)
    rounds = curves.rounds[some]
    unlike, alpha2, omega2 = _mixture(off, variance, rounds)
    # The mixture's mean and variance, in parts of what was seen and of its variance.
    of_alike, of_unlike = (own / (own + variance) for own in (alpha2, omega2))
    kept = (1 - unlike) * of_alike + unlike * of_unlike
    left = kept + unlike * (1 - unlike) * (of_unlike - of_alike) ** 2 * off**2 / variance
    # What is not known of other batch sizes is not moved by it.
    shift, removed = np.zeros((2, kinds.together.size))
    shift[some] = (kept - 1) * off * here / variance * computing
    removed[some] = np.maximum(1 - left, 0.0) * here * computing**2
    return curves.shifted(shift, removed)


def _may_be_slow_again(curves: PosteriorCurves, plan: Plan) -> NDArray[np.bool_]:
    """Ranks that have been slow before, and may be now; shape `[size]`.

    The next step will tell: what they take now is known less well than by one. That other ranks of
    their kind are not slow tells nothing.
    """
    periods = curves.periods
    is_slow = (periods.slower > PRIORS.slow) & (periods.number > 0)
    return np.asarray(is_slow & (curves.deviations(plan.samples) > curves.noise))


def _medians(values: NDArray[np.float64], number: NDArray[np.intp]) -> NDArray[np.float64]:
    """The median of each one's kind; shapes `[ranks]`."""
    medians, count = np.empty_like(values), np.bincount(number)
    for kind in np.flatnonzero(count):
        is_kind = number == kind
        middle = [(count[kind] - 1) // 2, count[kind] // 2]
        # Faster than np.median, which looks for NaN too.
        medians[is_kind] = np.partition(values[is_kind], middle)[middle].mean()
    return medians


def _mixture(
    off: NDArray[np.float64], variance: NDArray[np.float64], rounds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, float]:
    """How likely each rank is unlike its kind, and how much ranks differ: expectation maximisation.

    Args:
        off: Log seconds over those of the kind, shape `[ranks]`.
        variance: What is not known of that, same shape.
        rounds: By how many rounds noise is known, same shape.

    Returns:
        Chances, same shape; alpha^2 and omega^2, the variances of ranks that are alike, and of
        those that are not.
    """
    size = off.size
    # What is not known of noise may be the same for all ranks.
    deviation = np.sqrt(2 / size + 2 / float(np.mean(rounds)))
    before, least = PRIORS.equal_ranks * size, PRIORS.unequal_sd**2
    alpha2, alike_part = 0.0, (before + 0.5 * size) / (before + size)
    squared = off**2
    excess, omega2 = squared - variance, max(least, float(np.mean(squared)))
    for _ in range(_PASSES):
        if_alike, if_not = alpha2 + variance, omega2 + variance
        # Noise whose variance is learnt has the tails of Student's distribution.
        tails = 0.5 * (rounds + 1) * np.log1p(squared / if_alike / rounds)
        odds = np.exp(np.clip(tails - 0.5 * squared / if_not, -300, 300))
        odds *= np.sqrt(if_alike / if_not)
        unlike = 1 - alike_part / (alike_part + (1 - alike_part) * odds)
        alike_part = (before + 0.5 + float(np.sum(1 - unlike))) / (before + 1.0 + size)
        weights = (1 - unlike) / if_alike**2
        total = max(float(np.sum(weights)), 1e-9)
        by_chance = _CHANCE * deviation * float(np.sum(weights * variance)) / total
        alpha2 = max(0.0, float(np.sum(weights * excess)) / total - by_chance)
        squares = float(np.sum(unlike * np.maximum(excess, 0.0)))
        omega2 = max(least, squares / max(float(np.sum(unlike)), 1e-9))
    return np.asarray(unlike), alpha2, omega2
