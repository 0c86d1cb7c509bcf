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

    With blocks, the data are turned round by a distance drawn for the epoch and cut into blocks of
    consecutive samples; the order of the blocks is permuted, that in each block stays. So other
    samples are neighbours at the borders in each epoch, and the samples that fill no block, which
    come last, are other ones too.

    Attributes:
        num_samples: Samples in the data set.
        seed: Shuffle seed; None keeps the order of the data.
        epoch: Number of the epoch.
        block_size: Consecutive samples that stay together; 1 moves each sample alone.

    Example:
        >>> order = EpochOrder(num_samples=5, seed=None, epoch=0)
        >>> order.indices(1, 3).tolist()
        [1, 2, 3]
        >>> sorted(EpochOrder(num_samples=5, seed=7, epoch=0).indices(0, 5).tolist())
        [0, 1, 2, 3, 4]
        >>> EpochOrder(num_samples=9, seed=7, epoch=0, block_size=3).indices(0, 9).tolist()
        [1, 2, 3, 7, 8, 0, 4, 5, 6]

    References:
        Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
    """

    num_samples: int
    seed: int | None
    epoch: int
    block_size: int = 1

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples={self.num_samples} must be at least 1.")
        if self.epoch < 0:
            raise ValueError(f"epoch={self.epoch} must not be negative.")
        if self.block_size < 1:
            raise ValueError(f"block_size={self.block_size} must be at least 1.")

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
        return self.at(np.arange(start, start + count))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples at some positions of the epoch, shape `[count]`."""
        values = positions.astype(np.uint64)
        if self.seed is not None:
            keys = _keys(self.seed, self.epoch)
            if self.block_size == 1:
                values = _permuted(values, keys, self.num_samples)
            else:
                values = self._by_blocks(values, keys)
        return values.astype(np.int64)

    def _by_blocks(
        self, positions: NDArray[np.uint64], keys: tuple[np.uint64, ...]
    ) -> NDArray[np.uint64]:
        num_blocks, size = self.num_samples // self.block_size, np.uint64(self.block_size)
        in_blocks = positions < np.uint64(num_blocks * self.block_size)
        inside = positions[in_blocks]
        moved = positions.copy()
        moved[in_blocks] = _permuted(inside // size, keys, num_blocks) * size + inside % size
        distance = int(_mixed(np.array(keys[:1]))[0]) % self.num_samples
        return (moved + np.uint64(distance)) % np.uint64(self.num_samples)


def _permuted(
    values: NDArray[np.uint64], keys: tuple[np.uint64, ...], count: int
) -> NDArray[np.uint64]:
    """Where a permutation of the numbers below `count` sends some of them."""
    if count < 2:
        return values
    num_bits = max(2, (count - 1).bit_length())
    result = _encrypt(values, keys, num_bits)
    outside = np.flatnonzero(result >= count)
    while outside.size:
        result[outside] = _encrypt(result[outside], keys, num_bits)
        outside = outside[result[outside] >= count]
    return result


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
