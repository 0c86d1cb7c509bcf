"""The ranks of a modelled cluster as a scenario describes them: groups of one kind each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hvd_dbs.simulator.checks import (
    require,
    require_at_least,
    require_count,
    require_fraction,
    require_not_negative,
    require_positive,
)

MOST_RANKS = 2**20
"""Ranks of a scenario, at most: more would need more memory than there is."""


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Ranks with the same curve, but for the spread of their speeds.

    Attributes:
        count: Number of ranks.
        spread: Standard deviation of the logarithm of the ranks' times: 0.1 makes about two
            thirds of them at most 10 % slower or faster than the curve says.
        forward_fraction: Part of a step's compute time that is the forward pass.
        forward_fixed_fraction: The same of the part that does not depend on the batch size;
            None: like `forward_fraction`.
        min_batch_size: Fewest samples of each rank; None: the scenario's.
        max_batch_size: Most samples of each rank; None: the scenario's.
    """

    count: int = 1
    spread: float = 0.0
    forward_fraction: float = 1 / 3
    forward_fixed_fraction: float | None = None
    min_batch_size: int | None = None
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        require_count("count", self.count, MOST_RANKS)
        require_not_negative("spread", self.spread)
        require_fraction("forward_fraction", self.forward_fraction)
        if self.forward_fixed_fraction is not None:
            require_fraction("forward_fixed_fraction", self.forward_fixed_fraction)
        for name in ("min_batch_size", "max_batch_size"):
            if (value := getattr(self, name)) is not None:
                require_at_least(name, value, 1)
        if self.min_batch_size is not None and self.max_batch_size is not None:
            fits = self.min_batch_size <= self.max_batch_size
            expected = f"at least min_batch_size={self.min_batch_size}"
            require("max_batch_size", self.max_batch_size, fits, expected)


@dataclass(frozen=True, kw_only=True)
class AffineRanks(RankGroup):
    """t(b) = fixed_ms + per_sample_ms * b: processors, and accelerators that are kept busy.

    Attributes:
        fixed_ms: Milliseconds of a step without samples.
        per_sample_ms: Milliseconds that each sample adds.
    """

    per_sample_ms: float
    fixed_ms: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("per_sample_ms", self.per_sample_ms)
        require_not_negative("fixed_ms", self.fixed_ms)


@dataclass(frozen=True, kw_only=True)
class SaturatingRanks(AffineRanks):
    """t(b) = fixed_ms + per_sample_ms * max(b, saturation): an accelerator not always kept busy.

    Attributes:
        saturation: Samples below which a smaller batch is not faster.
    """

    saturation: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("saturation", self.saturation, 1)


@dataclass(frozen=True, kw_only=True)
class SawtoothRanks(AffineRanks):
    """The affine curve with saw-teeth that the seed draws, the same for all ranks of the group.

    Attributes:
        tile: Samples that are processed as one block.
        roughness: Height of the saw-teeth relative to the line.
        max_batch_size: Most samples of each rank: as far as the curve is drawn.
    """

    tile: int = 16
    roughness: float = 0.3
    max_batch_size: int | None = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("tile", self.tile, 1)
        require_fraction("roughness", self.roughness)
        require("max_batch_size", self.max_batch_size, self.max_batch_size is not None, "a number")


@dataclass(frozen=True, kw_only=True)
class MeasuredRanks(RankGroup):
    """A curve from a file of measured step times; its range is a bound.

    Attributes:
        device: Which device of the file.
        file: CSV file with device, batch_size, milliseconds, relative to the scenario's file;
            None: the file given to `--curves`.
    """

    device: str
    file: str | None = None


RANK_GROUPS: Mapping[str, type[RankGroup]] = MappingProxyType(
    {
        "affine": AffineRanks,
        "saturating": SaturatingRanks,
        "sawtooth": SawtoothRanks,
        "measured": MeasuredRanks,
    }
)
"""Kinds of curves by the name that scenario files use."""
