"""What `balancer.dataset` was asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_dbs.data.pipeline import as_source, require_usable
from hvd_dbs.data.source import Source
from hvd_dbs.sampling import LAYOUTS, SampleCosts


@dataclass(frozen=True)
class DatasetRequest:
    """A source, and how it is to be read.

    Attributes:
        source: The samples.
        shuffle_seed: Seed of their order; None: no shuffling.
        training: Whether it is trained on.
        layout: Where in the order each rank's samples are, of `sampling.LAYOUTS`.
        costs: What each sample costs; None: all the same.
    """

    source: Source
    shuffle_seed: int | None = None
    training: bool = True
    layout: str = "windows"
    costs: SampleCosts | None = None

    @classmethod
    def of(
        cls,
        given: Any,
        global_batch_size: int,
        *,
        shuffle_seed: int | None,
        training: bool,
        layout: str,
        cost: Any,
        multiple_of: int = 1,
    ) -> DatasetRequest:
        """Checks the arguments of `balancer.dataset`. May read files.

        Raises:
            TypeError: If one is of the wrong type.
            ValueError: If one is impossible, or two do not go together.
        """
        if not isinstance(training, bool):
            raise TypeError(f"training={training!r} must be True, or False for an evaluation.")
        source = as_source(given, global_batch_size)
        require_usable(source, shuffle_seed, training)
        if layout not in LAYOUTS:
            raise ValueError(f"layout={layout!r} is unknown. Known: {', '.join(sorted(LAYOUTS))}.")
        if source.has_own_order and layout != "windows":
            raise ValueError(
                f"layout={layout!r} needs samples that can be read in any order; a stream passes "
                f'by once. Use layout="windows".'
            )
        costs = None
        if cost is not None:
            _require_costs_usable(source, training, layout, multiple_of)
            costs = SampleCosts.of(cost, source.num_samples)
        return cls(source, shuffle_seed, training, layout, costs)

    @property
    def identity(self) -> dict[str, str]:
        """What all ranks must read alike, by name. May read files."""
        return {
            "number of samples": str(self.source.num_samples),
            "data set": self.source.identity,
            "block_size": str(self.source.block_size),
            "shuffle_seed": repr(self.shuffle_seed),
            "training": str(self.training),
            "layout": self.layout,
            "cost": "None" if self.costs is None else self.costs.identity,
        }


def _require_costs_usable(source: Source, training: bool, layout: str, multiple_of: int) -> None:
    if not training:
        raise ValueError(
            "cost with training=False: an evaluation is cut by the number of samples. "
            "Leave out cost."
        )
    if layout != "windows":
        raise ValueError(
            f"cost with layout={layout!r}, in which each rank reads one piece of the order in "
            f'equal steps. Costs cut each global batch: use layout="windows", or leave out cost.'
        )
    if source.is_endless:
        raise ValueError(
            "cost with an endless stream, whose samples have no numbers. Leave out cost, or read "
            "from arrays, hvd.data.TFRecords or hvd.data.RandomAccess."
        )
    if multiple_of > 1:
        raise ValueError(
            f"cost with multiple_of={multiple_of}: where windows are cut by cost, ranks have any "
            f"number of samples. Leave out one of them; micro_batch_size goes with cost where "
            f"allow_partial=True is given."
        )
