"""What the exchanges over MPI and over Horovod have in common: a thread of their own."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from numpy.typing import NDArray

from hvd_dbs.comm.background import BackgroundThread
from hvd_dbs.comm.collective import Collective

_T = TypeVar("_T")


class ThreadedCollective(Collective):
    """Has a thread of its own for what is not waited for; all is done in the order of the calls.

    The thread ends with it.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._thread = BackgroundThread("hvd_dbs collective")
        weakref.finalize(self, _end, self._thread).atexit = False

    def allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        """Rows of all ranks, shape `[size, n]`."""
        return self._thread.do(lambda: self._allgather(row))

    def broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        """Rank 0's row."""
        return self._thread.do(lambda: self._broadcast(row))

    def start(self, exchange: Callable[[Collective], _T]) -> Future[_T]:
        """Begins some exchanges in the thread."""
        return self._thread.start(lambda: exchange(self))

    def close(self) -> None:
        """What is under way ends when Horovod shuts down; what is after it is dropped."""
        self._thread.close()

    def require_open(self) -> None:
        """Raises HorovodInternalError if it is closed."""
        from horovod.common.exceptions import HorovodInternalError

        if self._thread.is_closed:
            raise HorovodInternalError(
                "the ranks changed, or another one failed, while they exchanged their timings."
            )

    def _allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError

    def _broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError


def _end(thread: BackgroundThread) -> None:
    thread.close()
    atexit.unregister(thread.close)
