"""A clock that shows the steps that a test gives it."""

from __future__ import annotations

import numpy as np

from hvd_dbs.ops.step_clock import StepTimes


class GivenClock:
    """Each step is seen by one `drain`, as with a `StepClock`.

    Attributes:
        busy_seconds: Of the steps that nobody has seen yet.
        num_samples: Of each of them, or one number for all.
        has_changed: What this rank tells the others.
        received: What some rank has signalled.
        sends_signals: Whether what this rank tells goes anywhere.
        first_part: Of each step, after which its first bucket is ready.
        data_seconds: In which each of them waited for its data, or one number for all.
    """

    def __init__(self, busy_seconds=(), num_samples=4.0):
        self.busy_seconds = busy_seconds
        self.num_samples = num_samples
        self.has_changed = self.received = False
        self.sends_signals = True
        self.first_part = 0.5
        self.data_seconds = 0.0

    def restart(self):
        pass

    def ask(self):
        pass

    def exclude(self, seconds):
        pass

    def send_signal(self, has_changed):
        self.has_changed = has_changed

    def take_signal(self):
        received, self.received = self.received, False
        return received

    def peek(self, num_steps):
        times = self._times()
        rows = zip(times.busy_seconds.tolist(), times.num_samples.tolist(), strict=True)
        known = list(rows)
        return known[max(len(known) - num_steps, 0) :]

    def drain(self):
        times = self._times()
        self.busy_seconds, self.data_seconds = [], 0.0
        if np.ndim(self.num_samples):
            self.num_samples = 4.0
        return times

    def _times(self):
        busy = np.array(self.busy_seconds, dtype=np.float64)
        none = np.zeros_like(busy)
        first = busy * self.first_part
        waits = none + self.data_seconds
        return StepTimes(busy, none, none + self.num_samples, waits, first, none, none)
