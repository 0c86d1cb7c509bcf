"""Small exchanges between the ranks of a job, outside of TensorFlow's graph.

Every exchange is collective: all ranks make it, in the same order and from one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")


class Collective:
    """What balancing needs of a communication library."""

    rank: int
    size: int

    def allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        """Rows of all ranks, shape `[size, n]`, from one row a rank, shape `[n]`, same dtype."""
        raise NotImplementedError

    def broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        """Rank 0's row on all ranks; same shape and dtype on all ranks."""
        raise NotImplementedError

    def start(self, exchange: Callable[[Collective], _T]) -> Future[_T]:
        """Begins some exchanges that nobody waits for, after those that are under way.

        Args:
            exchange: Is called with this collective, on all ranks, maybe in another thread.
        """
        future: Future[_T] = Future()
        try:
            future.set_result(exchange(self))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing more is started; what has not begun yet never does. Not collective."""
        return

    def require_open(self) -> None:
        """Raises HorovodInternalError if it is closed. Not collective.

        To be called right before what other ranks wait for: an exchange that was under way when the
        ranks changed would meet those of the ranks that there are now.
        """
        return


class AloneCollective(Collective):
    """A job of one process."""

    rank = 0
    size = 1

    def allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        """The row itself, shape `[1, n]`."""
        return row[np.newaxis].copy()

    def broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        """The row itself."""
        return row.copy()


class AssumedCollective(Collective):
    """An elastic job before its ranks have met: the others are taken to have what this one has.

    A rank that joins later sets itself up alone, while the others are training. What was assumed
    is checked when they meet.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        """This rank's row, once for each rank, shape `[size, n]`."""
        return np.repeat(row[np.newaxis], self.size, axis=0)

    def broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        """This rank's row."""
        return row.copy()


class ElasticCollective(Collective):
    """An elastic job: before its ranks meet what is assumed of it, then what it is.

    Attributes:
        has_met: Whether the ranks have met.
    """

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        self.has_met = False
        self._use(AssumedCollective(hvd.rank(), hvd.size()))

    def meet(self) -> None:
        """Connects the ranks that the job has now. On all ranks."""
        self._use(connect("balancer"))
        self.has_met = True

    def allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        """Rows of all ranks, shape `[size, n]`."""
        return self._current.allgather(row)

    def broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        """Rank 0's row."""
        return self._current.broadcast(row)

    def start(self, exchange: Callable[[Collective], _T]) -> Future[_T]:
        """Begins exchanges of the ranks that there are now."""
        return self._current.start(exchange)

    def close(self) -> None:
        """The ranks are no more what they were: what still waits for them must not meet others."""
        self._current.close()

    def _use(self, collective: Collective) -> None:
        self._current = collective
        self.rank: int = collective.rank
        self.size: int = collective.size


def connect(name: str = "collective") -> Collective:
    """MPI's where Horovod runs on all of MPI's ranks, else Horovod's own; of one rank, no exchange.

    Horovod's own also where MPI was initialized for one thread alone, which is Horovod's.

    Args:
        name: What its operations are called, where Horovod's own are used.

    Raises:
        RuntimeError: If Horovod is not initialized.
    """
    import horovod.tensorflow as hvd

    _require_horovod()
    if hvd.size() == 1:
        return AloneCollective()
    if hvd.mpi_enabled() and hvd.mpi_threads_supported():
        from hvd_dbs.comm.mpi_collective import MpiCollective, is_on_all_ranks

        if is_on_all_ranks():
            return MpiCollective()
    from hvd_dbs.comm.horovod_collective import HorovodCollective

    return HorovodCollective(name)


def is_elastic() -> bool:
    """Whether ranks of this job may come and go."""
    return os.environ.get("HOROVOD_ELASTIC", "0") == "1"


def connect_for_long() -> Collective:
    """The collective for what outlives a change of ranks; in an elastic job they meet later.

    Raises:
        RuntimeError: If Horovod is not initialized.
    """
    _require_horovod()
    return ElasticCollective() if is_elastic() else connect("balancer")


def _require_horovod() -> None:
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        raise RuntimeError("Horovod is not initialized. Call hvd.init() first.")
