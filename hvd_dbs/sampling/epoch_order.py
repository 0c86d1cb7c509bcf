"""The order of an epoch: a permutation that nobody has to store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NUM_ROUNDS = 6
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class EpochOrder:
    """Which sample stands at which position of an epoch.

    A keyed Feistel network over the fewest bits that cover `num_samples`; positions that land
    outside are sent through again (cycle walking), once on average, until they land inside.
    Whole-number arithmetic only, so every machine computes the same order, for any part of an
    epoch, in time proportional to that part.

    Attributes:
        num_samples: Samples in the data set.
        seed: Shuffle seed; None keeps the order of the data.
        epoch: Number of the epoch.

    Example:
        >>> order = EpochOrder(num_samples=5, seed=None, epoch=0)
        >>> order.indices(1, 3).tolist()
        [1, 2, 3]
        >>> sorted(EpochOrder(num_samples=5, seed=7, epoch=0).indices(0, 5).tolist())
        [0, 1, 2, 3, 4]

    References:
        Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
    """

    num_samples: int
    seed: int | None
    epoch: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples={self.num_samples} must be at least 1.")
        if self.epoch < 0:
            raise ValueError(f"epoch={self.epoch} must not be negative.")

    def indices(self, start: int, count: int) -> NDArray[np.int64]:
        """The samples at positions `start` to `start + count - 1`, shape `[count]`.

        Raises:
            ValueError: If a position is outside of the epoch.
        """
        if start < 0 or count < 0 or start + count > self.num_samples:
            raise ValueError(
                f"positions [{start}, {start + count}) are not inside an epoch of "
                f"{self.num_samples} samples."
            )
        positions = np.arange(start, start + count, dtype=np.uint64)
        if self.seed is not None and self.num_samples > 1:
            keys = _keys(self.seed, self.epoch)
            num_bits = max(2, (self.num_samples - 1).bit_length())
            positions = _encrypt(positions, keys, num_bits)
            outside = np.flatnonzero(positions >= self.num_samples)
            while outside.size:
                positions[outside] = _encrypt(positions[outside], keys, num_bits)
                outside = outside[positions[outside] >= self.num_samples]
        return positions.astype(np.int64)


def _encrypt(
    values: NDArray[np.uint64], keys: tuple[np.uint64, ...], num_bits: int
) -> NDArray[np.uint64]:
    """A permutation of all values of `num_bits` bits; the halves may differ by one bit."""
    low_bits = num_bits // 2
    masks = [np.uint64((1 << bits) - 1) for bits in (num_bits - low_bits, low_bits)]
    left, right = values >> np.uint64(low_bits), values & masks[1]
    for i, key in enumerate(keys):  # An even number of rounds gives each half its width back.
        left, right = right, left ^ (_mixed(right + key) & masks[i % 2])
    return (left << np.uint64(low_bits)) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: each bit of the result depends on all bits given."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    """One key a round, from a splitmix64 stream that starts at (seed, epoch)."""
    start = int(_mixed(np.array([seed & _MASK], dtype=np.uint64))[0])
    start = int(_mixed(np.array([(start + _GOLDEN * (epoch + 1)) & _MASK], dtype=np.uint64))[0])
    stream = [(start + _GOLDEN * (i + 1)) & _MASK for i in range(_NUM_ROUNDS)]
    return tuple(_mixed(np.array(stream, dtype=np.uint64)))
