"""Events that last: a pause in one short round is none; pure."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_dbs.job.scores import SlowEvent

LEAST_STEPS = 8
"""Steps for which a rank must stay slow, or recovered. `adaptive` decides after each step at times,
and noise and a pause in three single steps look like a slow rank. A longer round shows it at
once, so a rank that fell is known within 20 steps."""


class LastingEvents:
    """Holds events back until they have lasted; those that come to nothing before are left out.

    Example:
        >>> events = LastingEvents()
        >>> fell, back = SlowEvent(0, True, 0.5), SlowEvent(0, False, 1.0)
        >>> events.after([fell], 1), events.after([back], 1), events.after([], 9)
        ((), (), ())
        >>> events.after([fell], 1), events.after([], 7), events.after([], 9)
        ((), (SlowEvent(rank=0, is_slow=True, score=0.5),), ())
    """

    def __init__(self) -> None:
        self._slow: set[int] = set()
        self._held: dict[int, tuple[SlowEvent, int]] = {}

    def after(self, events: Sequence[SlowEvent], num_steps: int) -> tuple[SlowEvent, ...]:
        """Those that have lasted after another round.

        Args:
            events: What happened in it.
            num_steps: Its steps.
        """
        for event in events:
            self._held.pop(event.rank, None)
            if event.is_slow != (event.rank in self._slow):
                self._held[event.rank] = event, 0
        lasting = []
        for rank, (event, before) in list(self._held.items()):
            self._held[rank] = event, before + num_steps
            if before + num_steps >= LEAST_STEPS:
                lasting.append(event)
                del self._held[rank]
                self._slow ^= {rank}
        return tuple(sorted(lasting, key=lambda event: event.rank))
