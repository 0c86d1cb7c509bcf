"""How a job goes round the memory of its fast rank."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLES_PER_RANK = 192
"""Of the global batch. As many fit into the memory of the fast rank, rank 0."""


@dataclass(frozen=True)
class Way:
    """What a balancer is told.

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


EVEN = Way("an even split", strategy="even", bound=SAMPLES_PER_RANK)
NO_BOUND = Way("no bound")
WAYS = (
    EVEN,
    Way("a bound of 192 samples", bound=SAMPLES_PER_RANK),
    Way("whole micro-batches of 32", micro_batch_size=32),
    Way("micro-batches of 192, with a rest", micro_batch_size=192, allow_partial=True),
    NO_BOUND,
)
