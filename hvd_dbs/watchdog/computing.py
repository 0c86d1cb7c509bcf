"""CPU time that a process computes with, without that of threads that only poll."""

from __future__ import annotations

import os
import time

from hvd_dbs.watchdog.process_kill import ThreadUse, threads_of

_LEAST_SLICE = 5e-4
"""Seconds of CPU time between two waits of a thread that computes. Horovod's own thread looks a
thousand times a second for what others send, 0.1 ms each time: up to 0.15 of a core."""
_MOST_POLLING = 0.3
"""Of a core: what is used beyond that is no polling, however short the slices are."""


class ComputingTime:
    """Adds up the CPU time that this process computes with, while asked for it again and again."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._before: dict[str, ThreadUse] = {}
        self._asked = 0.0

    def skip(self) -> float:
        """Seconds so far; those until the next call do not matter, and need not be read."""
        self._before = {}
        return self._seconds

    def seconds(self) -> float:
        """Seconds so far."""
        now, threads = time.monotonic(), threads_of(os.getpid())
        if self._before:
            tick = 1 / os.sysconf("SC_CLK_TCK")
            used = [
                (tick * (use.ticks - before.ticks), use.num_waits - before.num_waits)
                for thread, use in threads.items()
                if (before := self._before.get(thread)) is not None
            ]
            long = sum(seconds for seconds, waits in used if seconds >= _LEAST_SLICE * (waits + 1))
            total = sum(seconds for seconds, _ in used)
            self._seconds += max(long, total - _MOST_POLLING * (now - self._asked))
        self._before, self._asked = threads, now
        return self._seconds
