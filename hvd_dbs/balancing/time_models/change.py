"""Tells a change of pace from an outlier: it has to be seen twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def confirm(
    suspect: NDArray[np.float64],
    surprise: NDArray[np.float64],
    far: NDArray[np.bool_],
    usable: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which ranks changed their pace, and the surprises that wait for the next round.

    A pause of a single round is far off once; a change is far off, in the same direction, in the
    next round too.

    Args:
        suspect: The surprise held back in the round before, 0 for none, shape `[rows]`.
        surprise: log(seen / expected) of this round, shape `[rows]`.
        far: Where the surprise is larger than noise explains, shape `[rows]`.
        usable: Where there is a timing at all, shape `[rows]`.

    Returns:
        Where a change is confirmed, and the suspects to keep, shapes `[rows]`.

    Example:
        >>> nothing, yes = np.zeros(1), np.array([True])
        >>> changed, suspect = confirm(nothing, np.array([0.7]), yes, yes)
        >>> changed.tolist(), confirm(suspect, np.array([0.6]), yes, yes)[0].tolist()
        ([False], [True])
    """
    changed = far & (suspect * surprise > 0)
    return changed, np.where(usable, np.where(far & ~changed, surprise, 0.0), suspect)
