"""Throttling without root: a rank is stopped when its CPU budget is used up, then continued.

The budget works like a CFS quota. It fills at `share` CPU seconds per second, holds at most one
period's worth, and is drawn on by what the rank really consumed; overdrawing is owed, not
forgiven, so late wake-ups of this process do not add up to drift. A rank that waits is not stopped.
"""

import contextlib
import os
import signal
import time

PERIOD_SECONDS = 0.01
SHORTEST_SLEEP_SECONDS = 0.0005
LONGEST_SLEEP_SECONDS = 0.05
_CPUCLOCK_SCHED = 2


class CpuBudget:
    """The CPU seconds that a rank may use now; pure."""

    def __init__(self, share: float) -> None:
        """Starts full. `share` is in CPU seconds per second."""
        self.share = share
        self.balance = share * PERIOD_SECONDS
        self.is_stopped = False

    def advance(self, elapsed: float, consumed: float) -> bool:
        """Books `consumed` CPU seconds in `elapsed` seconds; returns whether to be stopped."""
        full = self.share * PERIOD_SECONDS
        self.balance = min(self.balance + self.share * elapsed - consumed, full)
        # Continued only when full: one stop and one continue a period, however small the share.
        if self.is_stopped:
            self.is_stopped = self.balance < full * 0.999
        else:
            self.is_stopped = self.balance <= 0
        return self.is_stopped

    def seconds_to_change(self) -> float:
        """Earliest time at which a rank on one core can need another state."""
        if self.is_stopped:
            return PERIOD_SECONDS - self.balance / self.share
        return self.balance


class _Process:
    """A process by its descriptor, so that a signal never meets a successor with its id."""

    def __init__(self, pid: int) -> None:
        self.descriptor = os.pidfd_open(pid)
        # The CPU clock of another process: time of all its threads, in nanoseconds.
        self._clock = (~pid << 3) | _CPUCLOCK_SCHED
        self._seen = time.clock_gettime(self._clock)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def consumed(self) -> float:
        """CPU seconds since the last call; raises OSError when the process has ended."""
        before, self._seen = self._seen, time.clock_gettime(self._clock)
        return self._seen - before


class SignalDuty:
    """Throttle by SIGSTOP and SIGCONT."""

    def __init__(self, num_ranks: int, because: str = "") -> None:
        """Starts with no limit for `num_ranks` ranks; `because` says why not cgroups."""
        self.description = "stopping and continuing by signals" + (
            f" ({because})" if because else ""
        )
        self._budgets: list[CpuBudget | None] = [None] * num_ranks
        self._processes: list[dict[int, _Process]] = [{} for _ in range(num_ranks)]
        self._ticked_at = time.monotonic()

    def set_share(self, rank: int, share: float) -> None:
        """See `Throttle`."""
        self._send(rank, signal.SIGCONT)
        self._budgets[rank] = CpuBudget(share) if share < 1 else None

    def add(self, rank: int, pid: int) -> None:
        """See `Throttle`."""
        if pid not in self._processes[rank]:
            with contextlib.suppress(OSError):  # it has ended already
                self._processes[rank][pid] = _Process(pid)

    def tick(self) -> float:
        """See `Throttle`."""
        now = time.monotonic()
        elapsed, self._ticked_at = now - self._ticked_at, now
        next_change = LONGEST_SLEEP_SECONDS
        for rank, budget in enumerate(self._budgets):
            consumed = self._consumed(rank)
            if budget is None or not self._processes[rank]:
                continue
            was_stopped = budget.is_stopped
            if budget.advance(elapsed, consumed):
                # Each time, not only at the change: a child may have been added meanwhile, and
                # mpirun continues its children when it is told to.
                self._send(rank, signal.SIGSTOP)
            elif was_stopped:
                self._send(rank, signal.SIGCONT)
            next_change = min(next_change, budget.seconds_to_change())
        return max(next_change, SHORTEST_SLEEP_SECONDS)

    def release(self) -> None:
        """See `Throttle`."""
        for rank in range(len(self._budgets)):
            self.set_share(rank, 1)

    def members(self) -> set[int]:
        """See `Throttle`. Empty: this mechanism makes nothing that could hold a process."""
        return set()

    def close(self) -> None:
        """See `Throttle`."""
        for processes in self._processes:
            for process in processes.values():
                os.close(process.descriptor)
            processes.clear()

    def _consumed(self, rank: int) -> float:
        total = 0.0
        for pid, process in list(self._processes[rank].items()):
            try:
                total += process.consumed()
            except OSError:
                os.close(self._processes[rank].pop(pid).descriptor)
        return total

    def _send(self, rank: int, number: signal.Signals) -> None:
        for process in self._processes[rank].values():
            process.send(number)
