"""CPU time that a process computes with, without that of threads that communicate."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from hvd_dbs.watchdog.process_kill import threads_of

_communicating: set[str] = set()


@contextlib.contextmanager
def communication_starts() -> Iterator[None]:
    """Threads that are started within are those of Horovod and MPI.

    They poll for what others send, with up to half a core while they wait on a busy host.
    """
    before = set(threads_of(os.getpid()))
    yield
    _communicating.intersection_update(before)  # Numbers of others may be used again.
    _communicating.update(set(threads_of(os.getpid())) - before)


class ComputingTime:
    """Adds up the CPU time that this process computes with, while asked for it again and again."""

    def __init__(self) -> None:
        self._ticks = 0
        self._before: dict[str, int] = {}

    def skip(self) -> float:
        """Seconds so far; those until the next call do not matter, and need not be read."""
        self._before = {}
        return self._seconds

    def seconds(self) -> float:
        """Seconds so far."""
        ignored = {*_communicating, str(threading.get_native_id())}
        uses = threads_of(os.getpid())
        ticks = {thread: use.ticks for thread, use in uses.items() if thread not in ignored}
        self._ticks += sum(
            ticks[thread] - self._before.get(thread, ticks[thread]) for thread in ticks
        )
        self._before = ticks
        return self._seconds

    @property
    def _seconds(self) -> float:
        return self._ticks / os.sysconf("SC_CLK_TCK")
