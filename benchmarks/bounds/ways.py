"""How a job goes round the memory of its fast rank."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLES_PER_RANK = 192
"""Of the global batch. As many fit into the memory of the fast rank, rank 0."""


@dataclass(frozen=True)
class Way:
    """The arguments of a balancer.

    Attributes:
        name: For the table.
        strategy: Name of a preset.
        bound: Most samples of rank 0; None: there is no bound.
        micro_batch_size: Samples that a rank computes at a time; None: its whole local batch.
        allow_partial: Whether the last micro-batch of a step may have fewer.
    """

    name: str
    strategy: str = "adaptive"
    bound: int | None = None
    micro_batch_size: int | None = None
    allow_partial: bool = False


_SMALL = 32
"""Samples of a small micro-batch: a sixth of what fits, so that whole ones still leave a choice."""

EVEN = Way("an even split", strategy="even", bound=SAMPLES_PER_RANK)
NO_BOUND = Way("no bound")
WAYS = (
    EVEN,
    Way(f"a bound of {SAMPLES_PER_RANK} samples", bound=SAMPLES_PER_RANK),
    Way(f"whole micro-batches of {_SMALL}", micro_batch_size=_SMALL),
    Way(
        f"micro-batches of {SAMPLES_PER_RANK}, with a rest",
        micro_batch_size=SAMPLES_PER_RANK,
        allow_partial=True,
    ),
    NO_BOUND,
)
