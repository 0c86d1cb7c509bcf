"""Periods of steps in which something slows a rank, or hides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.float64] | NDArray[np.int64] | float | int


@dataclass(frozen=True)
class Periods:
    """A table of periods, one entry per period in each field. Periods of one rank add up.

    Attributes:
        rank: Whom it concerns.
        start: First step.
        stop: First step after it.
        load_start: First step during which the host shows its load.
        load_stop: First step during which it does not show it any more.
        log_factor: Logarithm of the factor on the step time.
        extra_seconds: Added to each step.
        pause_seconds: Added to each step, but nothing that a plan could make up for.
        load: Processor use that the host shows in addition.
        memory: Memory use that the host shows in addition.
        absent: 1 where the rank is not part of the job.
        network_log_factor: Logarithm of the factor on the communication of all ranks, which is
            that of the slowest link.
    """

    rank: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    load_start: NDArray[np.int64]
    load_stop: NDArray[np.int64]
    log_factor: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]
    pause_seconds: NDArray[np.float64]
    load: NDArray[np.float64]
    memory: NDArray[np.float64]
    absent: NDArray[np.float64]
    network_log_factor: NDArray[np.float64]

    @classmethod
    def of(cls, rank: NDArray[np.int64], start: Column, stop: Column, **given: Column) -> Periods:
        """Periods with a column or one value for each field; fields not given are 0.

        Example:
            >>> Periods.of(np.array([0, 2]), 5, 9, load=0.5).load.tolist()
            [0.5, 0.5]
        """
        given.setdefault("load_start", start)
        given.setdefault("load_stop", stop)
        columns = {"rank": rank, "start": start, "stop": stop, **given}
        whole = ("rank", "start", "stop", "load_start", "load_stop")
        filled: dict[str, Any] = {}
        for field in fields(cls):
            dtype = np.int64 if field.name in whole else np.float64
            values = np.asarray(columns.get(field.name, 0), dtype=dtype)
            filled[field.name] = np.broadcast_to(values, rank.shape)
        return cls(**filled)

    @classmethod
    def none(cls) -> Periods:
        """No period."""
        return cls.of(np.zeros(0, dtype=np.int64), 0, 0)

    @classmethod
    def join(cls, tables: Sequence[Periods]) -> Periods:
        """All periods of several tables."""
        tables = [cls.none(), *tables]
        return cls(
            **{
                field.name: np.concatenate([getattr(table, field.name) for table in tables])
                for field in fields(cls)
            }
        )
