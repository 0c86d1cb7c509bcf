"""Exchanges over MPI, where it has started the job."""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.threaded_collective import ThreadedCollective
from hvd_dbs.watchdog.exit_barrier import leave_together_at_exit, own_communicator

_LEAST_SLEEP, _MOST_SLEEP, _SLEEP_PART = 5e-5, 2e-3, 0.125
"""Seconds between two looks for what others send, in parts of the time waited: a look costs some
of a slow rank's time."""


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
            self._all.append(own_communicator().Dup())
            self._free.append(False)
        self._free[number] = False
        return number

    def give_back(self, number: int) -> None:
        """It may be used again, as far as this rank is concerned. Not collective."""
        self._free[number] = True

    def __getitem__(self, number: int) -> Any:
        return self._all[number]


_communicators = _Communicators()


def is_on_all_ranks() -> bool:
    """Whether Horovod runs on all of MPI's ranks: `hvd.init` may be given some. Collective.

    They meet by Horovod, which warns of ranks that do not come, and fails where one has ended. One
    that makes communicators alone would deadlock, or crash where Horovod has ended MPI.
    """
    import horovod.tensorflow as hvd
    import mpi4py
    import tensorflow as tf

    with tf.device("CPU"):
        hvd.allreduce(tf.ones([]), op=hvd.Sum, name="hvd_dbs.connect")
    # Horovod has initialized MPI and will finalize it.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return bool(MPI.COMM_WORLD.Get_size() == hvd.size())


class MpiCollective(ThreadedCollective):
    """mpi4py on buffers, beside Horovod's own MPI thread, on a communicator of its own."""

    def __init__(self) -> None:
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
        self._require_mpi()
        self._wait(self._communicator.Iallgather(sent, rows))
        return rows

    def _broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        buffer = np.array(row)
        self._require_mpi()
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
        self._require_mpi()
        return bool(request.Test())

    def _require_mpi(self) -> None:
        from horovod.common.exceptions import HorovodInternalError
        from mpi4py import MPI

        self.require_open()
        if MPI.Is_finalized():
            raise HorovodInternalError(
                "MPI has ended during an exchange of all ranks: another rank has ended."
            )
