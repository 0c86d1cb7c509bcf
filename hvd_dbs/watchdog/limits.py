"""After how long ranks are named and ended."""

from __future__ import annotations

import os
from dataclasses import dataclass

GLOO_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_GLOO_SECONDS = 30.0

_LONGEST_PERIOD = 1.0
_HEARTBEATS_PER_SECOND = 1024
"""Heartbeats that rank 0 answers, with about a sixth of a core."""
_PERIODS_TO_WARN = 8
SILENT_PERIODS = 5
"""A rank that has missed so many heartbeats is silent: frozen, dead, or out of reach."""


@dataclass(frozen=True)
class Limits:
    """When ranks are named and ended.

    Attributes:
        period: Seconds between two heartbeats of a rank.
        warn_seconds: After how long without progress a rank is named.
        abort_seconds: After how long it is ended; None: never.
        is_elastic: Whether the job goes on without a rank that is lost.
        gloo_seconds: Gloo's timeout; None: the job does not use Gloo.
    """

    period: float
    warn_seconds: float
    abort_seconds: float | None = None
    is_elastic: bool = False
    gloo_seconds: float | None = None

    @classmethod
    def of_job(
        cls,
        size: int,
        warn_seconds: float,
        abort_seconds: float | None,
        is_elastic: bool,
        gloo_seconds: float | None,
    ) -> Limits:
        """For a job of so many ranks; in a large one heartbeats are rare, and all takes longer."""
        least = size / _HEARTBEATS_PER_SECOND
        period = max(min(_LONGEST_PERIOD, warn_seconds / _PERIODS_TO_WARN), least)
        warn_seconds = max(warn_seconds, _PERIODS_TO_WARN * least)
        if abort_seconds is not None:
            abort_seconds = max(abort_seconds, warn_seconds)
        return cls(period, warn_seconds, abort_seconds, is_elastic, gloo_seconds)

    @property
    def silent_seconds(self) -> float:
        """After how long without a heartbeat a rank is silent."""
        return SILENT_PERIODS * self.period

    def is_time_to_end(self, seconds: float) -> bool:
        """Whether a rank is to be ended after so long."""
        return self.abort_seconds is not None and seconds >= self.abort_seconds

    def is_time_to_end_job(self, seconds: float) -> bool:
        """Whether a job that has lost a rank is to be ended; never an elastic one."""
        return self.is_time_to_end(seconds) and not (
            self.is_elastic or seconds < (self.gloo_seconds or 0.0)
        )

    def fate_without(self) -> str:
        """What becomes of a job whose rank nobody can reach or end."""
        if self.is_elastic:
            gloo = f"Gloo's timeout ({GLOO_VARIABLE}, {self.gloo_seconds or _GLOO_SECONDS:g} s)"
            return (
                f"Nobody is ended: the job goes on without it after {gloo}. The launcher notices a "
                f"host that is cut off only with ssh's ServerAliveInterval."
            )
        if self.abort_seconds is None:
            return "The job cannot go on without it."
        limit = max(self.abort_seconds, self.gloo_seconds or 0.0)
        return f"The job cannot go on without it, and is ended after {limit:g} s."

    def check(self) -> str:
        """A warning about `abort_seconds`, or "".

        Raises:
            ValueError: If an elastic job would wait for good for a rank that freezes.
        """
        if self.abort_seconds is None or self.gloo_seconds is None:
            return ""
        if self.abort_seconds < self.gloo_seconds:
            return ""
        text = (
            f"abort_seconds={self.abort_seconds:g} of ProgressWatchdogCallback is not below Gloo's "
            f"timeout, {GLOO_VARIABLE}={self.gloo_seconds:g}"
        )
        if self.is_elastic:
            raise ValueError(
                f"{text}: the other ranks would leave the step first, and then wait for good for a "
                f"rank that is frozen. Lower abort_seconds, or raise {GLOO_VARIABLE}."
            )
        return f"{text}: Horovod ends the job first, and no message names the rank."


def gloo_seconds() -> float:
    """Gloo's timeout, as Horovod reads it."""
    try:
        return float(int(os.environ[GLOO_VARIABLE]))
    except (KeyError, ValueError):
        return _GLOO_SECONDS
