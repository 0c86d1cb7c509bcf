"""Small exchanges between the ranks of a job, outside of TensorFlow's graph.

Every function here is collective: all ranks call it, in the same order and from one thread.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.background import BackgroundThread
from hvd_dbs.watchdog.exit_barrier import leave_together_at_exit, own_communicator

_T = TypeVar("_T")

_LEAST_SLEEP, _MOST_SLEEP, _SLEEP_PART = 5e-5, 2e-3, 0.125
"""Seconds between two looks for what others send, in parts of the time waited: a look costs some
of a slow rank's time."""


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
        """Begins some exchanges that nobody waits for, behind those that are under way.

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
        """What is under way ends when Horovod shuts down; what is behind it is dropped."""
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


class _Communicators:
    """Duplicates of MPI's world, each for one collective at a time, used again and never freed.

    MPI_Comm_free is collective and MPI has only so many communicators, but a collective ends on
    each rank when Python drops it. So a duplicate is used again as soon as it is free on all ranks,
    on which they agree where the next one is needed: there they are all together.
    """

    def __init__(self) -> None:
        self._all: list[Any] = []
        self._free: list[bool] = []

    def take(self) -> int:
        """The number of one that is free on all ranks. Collective."""
        from mpi4py import MPI

        free = np.array(self._free, dtype=np.int32)
        own_communicator().Allreduce(MPI.IN_PLACE, free, op=MPI.MIN)
        number = int(np.argmax(free)) if free.any() else len(free)
        if number == len(free):
            self._all.append(MPI.COMM_WORLD.Dup())
            self._free.append(False)
        self._free[number] = False
        return number

    def give_back(self, number: int) -> None:
        """It may be used again, as far as this rank is concerned. Not collective."""
        self._free[number] = True

    def __getitem__(self, number: int) -> Any:
        return self._all[number]


_communicators = _Communicators()


class MpiCollective(ThreadedCollective):
    """mpi4py on buffers, beside Horovod's own MPI thread, on a communicator of its own."""

    def __init__(self) -> None:
        import mpi4py

        # Horovod has initialized MPI and will finalize it.
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        leave_together_at_exit()
        number = _communicators.take()
        self._communicator = _communicators[number]
        self._return = weakref.finalize(self, _communicators.give_back, number)
        self._return.atexit = False
        super().__init__(self._communicator.Get_rank(), self._communicator.Get_size())
        # Before Horovod ends MPI. Not `self.close`, which would keep this one till then.
        atexit.register(self._thread.close)

    def close(self) -> None:
        """What is under way ends with an error; its communicator is not used again."""
        self._return.detach()
        super().close()

    def _allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        sent, rows = np.array(row), np.empty((self.size, *row.shape), row.dtype)
        self._wait(self._communicator.Iallgather(sent, rows))
        return rows

    def _broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        buffer = np.array(row)
        self._wait(self._communicator.Ibcast(buffer, root=0))
        return buffer

    def _wait(self, request: Any) -> None:
        # Horovod ends MPI when a rank has failed; who waits inside of MPI then crashes.
        start = time.perf_counter()
        try:
            while not self._has_arrived(request):
                waited = time.perf_counter() - start
                time.sleep(min(max(_LEAST_SLEEP, _SLEEP_PART * waited), _MOST_SLEEP))
        except BaseException:  # What is under way would meet the next exchange.
            self._return.detach()
            raise

    def _has_arrived(self, request: Any) -> bool:
        from horovod.common.exceptions import HorovodInternalError
        from mpi4py import MPI

        self.require_open()
        if MPI.Is_finalized():
            raise HorovodInternalError(
                "MPI has ended while ranks exchanged their timings: another rank has failed."
            )
        return bool(request.Test())


class HorovodCollective(ThreadedCollective):
    """Horovod's own operations, for jobs that MPI did not start (Gloo).

    Args:
        name: What its operations are called: those of two collectives may be under way at once.
    """

    def __init__(self, name: str) -> None:
        import horovod.tensorflow as hvd

        super().__init__(hvd.rank(), hvd.size())
        self._of_rows = partial(hvd.allgather, name=f"hvd_dbs.{name}.allgather")
        self._of_rank_0 = partial(hvd.broadcast, root_rank=0, name=f"hvd_dbs.{name}.broadcast")
        self._functions: dict[tuple[Any, ...], Callable[[Any], Any]] = {}

    def _allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        if row.size == 0:
            return np.empty((self.size, *row.shape), row.dtype)
        return self._run(self._of_rows, row[np.newaxis])

    def _broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        return self._run(self._of_rank_0, row)

    def _run(self, operation: Callable[[Any], Any], row: NDArray[Any]) -> NDArray[Any]:
        import tensorflow as tf

        # Called eagerly, all of Horovod's operations of a kind have one name, and no two may be
        # under way at once, of ours and of the user's; in a function each has its own. A function
        # of several types would be traced again and again, with a warning; it also comes where
        # several functions are made of the same code, which a `partial` has none of.
        sent = np.array(row)
        key = (operation, sent.dtype, sent.ndim)
        if key not in self._functions:
            spec = tf.TensorSpec([None] * sent.ndim, sent.dtype)
            function = tf.function(partial(operation), [spec], autograph=False)
            self._functions[key] = function.get_concrete_function()  # Takes long.
        self.require_open()
        return np.array(self._functions[key](tf.constant(sent)))


def connect(name: str = "collective") -> Collective:
    """The collective that fits how the job was started.

    Args:
        name: What its operations are called, where Horovod's own are used.

    Raises:
        RuntimeError: If Horovod is not initialized.
    """
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        raise RuntimeError("Horovod is not initialized. Call hvd.init() first.")
    if hvd.size() == 1:
        return AloneCollective()
    return MpiCollective() if hvd.mpi_enabled() else HorovodCollective(name)


def is_elastic() -> bool:
    """Whether ranks of this job may come and go."""
    return os.environ.get("HOROVOD_ELASTIC", "0") == "1"


def connect_for_long() -> Collective:
    """The collective for what outlives a change of ranks; in an elastic job they meet later.

    Raises:
        RuntimeError: If Horovod is not initialized.
    """
    collective = connect("balancer")
    return ElasticCollective() if is_elastic() else collective
