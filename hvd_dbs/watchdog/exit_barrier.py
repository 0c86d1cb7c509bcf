"""Lets the ranks of a job end together, where one that ends takes MPI from all others."""

from __future__ import annotations

import atexit
import functools
import sys
import time
from typing import Any

from hvd_dbs.watchdog.mpi_inbox import MpiInbox

_LONGEST_WAIT = 2.0
"""Seconds: a rank that comes later has failed or hangs."""
_SLEEP = 1e-3


@functools.cache
def own_communicator() -> Any:
    """A communicator of this package, for what all ranks do at once. Collective, the first time."""
    import horovod.tensorflow as hvd
    from mpi4py import MPI

    return MPI.COMM_WORLD.Split(key=hvd.rank())  # hvd.init may have another order of ranks.


@functools.cache
def inbox() -> MpiInbox:
    """For what a rank that fails sends the others. Collective, the first time."""
    return MpiInbox(own_communicator())


def leave_together_at_exit() -> None:
    """Waits for the others when Python ends, before Horovod's own end. Collective, once a process.

    Horovod shuts all ranks down with the first one. A rank that has not looked yet for what the
    last exchange has brought would take that for the failure of another.
    """
    inbox()
    atexit.unregister(_leave_together)
    atexit.register(_leave_together)


def shutdown() -> None:
    """Horovod's `shutdown`, as soon as all ranks are there or will not come."""
    import horovod.tensorflow as hvd

    _leave_together()
    hvd.shutdown()


def _leave_together() -> None:
    has_failed = getattr(sys, "last_value", None) is not None  # Python's, of an uncaught error.
    if inbox.cache_info().currsize == 0 or has_failed:
        return
    from mpi4py import MPI  # Initializes MPI where Horovod runs without it.

    if MPI.Is_finalized():
        return
    inbox().close()
    everybody = own_communicator().Ibarrier()
    start = time.monotonic()
    while time.monotonic() - start < _LONGEST_WAIT:
        if MPI.Is_finalized() or everybody.Test():  # A rank that has left has seen all of us here.
            return
        time.sleep(_SLEEP)
