"""The plug point of time models."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.change_signal import ExpectedSteps
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.measurement import Measurement

ModelState: TypeAlias = dict[str, NDArray[np.float64]]
"""What a model remembers, one row per rank in each array: plain data, saved with the job."""


class TimeModel(Protocol):
    """Folds measurements into an estimate of t_i(b).

    A model works on rows, one per rank: a running job has the row of its own rank, the
    simulator those of all ranks. What rank 0 needs to know is a record of fixed size, so that
    one allgather of floats carries it.
    """

    record_size: int

    def init(self, num_rows: int) -> ModelState:
        """The state before the first measurement."""
        ...

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """The state after one more round; the state given is left alone."""
        ...

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """What rank 0 receives, shape `[rows, record_size]`; NaN where nothing is known."""
        ...

    def curves(self, records: NDArray[np.float64]) -> TimeCurves:
        """The curves that the records of all ranks, shape `[size, record_size]`, describe."""
        ...


@runtime_checkable
class PoolingModel(TimeModel, Protocol):
    """A time model to which the records of all ranks say something of each."""

    def pool(self, state: ModelState, records: NDArray[np.float64]) -> ModelState:
        """The state once the records of all ranks, shape `[size, record_size]`, are known."""
        ...


@runtime_checkable
class StepModel(TimeModel, Protocol):
    """A time model that says what single steps should take; otherwise the last round does."""

    def expected_steps(self, state: ModelState) -> ExpectedSteps:
        """What the next steps of each row are expected to take."""
        ...


def plain_rows(rows: NDArray[np.float64]) -> list[Any]:
    """Nested lists in which an unknown value is None, since JSON has no NaN."""
    plain = rows.astype(object)
    plain[~np.isfinite(rows)] = None
    nested: list[Any] = plain.tolist()
    return nested
