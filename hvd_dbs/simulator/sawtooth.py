"""Saw-toothed step times, as accelerators have them, from a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sawtooth_seconds(
    batch_sizes: NDArray[np.int64],
    tile: int,
    roughness: float,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """Relative cost of a batch: what a straight line would say, times what the kernels make of it.

    Two effects, each known from measured curves: work is done in whole tiles of samples, so that
    one sample more may cost a tile more; and the library picks another kernel from some batch
    sizes on, so that one sample more may also cost *less*.

    Args:
        batch_sizes: From 1 on, ascending, shape `[points]`.
        tile: Samples that are processed as one block; 1 has no steps.
        roughness: Height of the saw-teeth relative to the line, 0 to 1.
        random: Where the kernels' borders and speeds come from.

    Returns:
        Samples that the cost is worth, shape `[points]`, near `batch_sizes`.

    Example:
        >>> line = sawtooth_seconds(np.arange(1, 5), 1, 0.0, np.random.default_rng(1))
        >>> line.tolist()
        [1.0, 2.0, 3.0, 4.0]
    """
    samples = np.asarray(batch_sizes, dtype=np.float64)
    in_tiles = np.ceil(samples / tile) * tile
    # Half of a tile's cost comes at once, the rest with each sample.
    stepped = samples + 0.5 * roughness * (in_tiles - samples)
    borders, factors = [0.0], [1.0]
    while borders[-1] < samples[-1]:
        borders.append(borders[-1] + tile * random.integers(1, 4))
        factors.append(1 + roughness * random.uniform(-0.5, 0.5))
    kernel = np.searchsorted(np.asarray(borders), samples, side="left") - 1
    return np.asarray(stepped * np.asarray(factors)[kernel], dtype=np.float64)
