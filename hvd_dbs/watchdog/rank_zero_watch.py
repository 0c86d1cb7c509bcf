"""What other ranks conclude from rank 0's answers to their heartbeats. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_dbs.watchdog.findings import Action, Finding
from hvd_dbs.watchdog.heartbeat import WAITING, Heartbeat
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.stall_detection import STEPS_WITHOUT


@dataclass
class RankZeroWatch:
    """What another rank concludes from rank 0's answers to its heartbeats, or from their absence.

    Attributes:
        name: Rank 0 in messages.
        rank: This rank.
        limits: When ranks are named and ended.
        is_neighbour: Whether this rank is on rank 0's host.
        answered: The time of rank 0's last answer, at first that of the first heartbeat.
    """

    name: str
    rank: int
    limits: Limits
    is_neighbour: bool
    answered: float
    _was_answered: bool = False
    _is_warned: bool = False
    _is_lost: bool = False
    _waits_since: float = 0.0
    _progress: int = -1
    _judged: float = float("inf")
    _steps_when_silent: int | None = None

    def note_answer(self, now: float) -> None:
        """Rank 0 has answered."""
        self.answered, self._was_answered = now, True
        self._is_warned = self._is_lost = False
        self._steps_when_silent = None

    def judge(self, beat: Heartbeat, has_run: bool | None, now: float) -> list[Finding]:
        """Rank 0 named once if it is silent and this rank waits; an action if it is to be ended.

        Args:
            beat: This rank's heartbeat.
            has_run: Whether rank 0's process runs, if this rank can see it and knows.
            now: The time.

        Returns:
            With an action `END_RANK`: rank 0's process does not run, and is to be killed. With
            `END_JOB`: this rank ends itself, for the job cannot go on.
        """
        silent_seconds = self.limits.silent_seconds
        if now - self._judged > silent_seconds:  # This rank was frozen.
            self.answered = now
        self._judged = now
        if beat.doing != WAITING or beat.progress != self._progress:
            self._waits_since = now
        self._progress = beat.progress
        if now - self.answered > silent_seconds:
            if self._steps_when_silent is None:
                self._steps_when_silent = beat.num_steps
            self._is_lost |= beat.num_steps >= self._steps_when_silent + STEPS_WITHOUT
        stalled = now - max(self.answered, self._waits_since)
        if self._is_lost or stalled < self.limits.warn_seconds:
            return []
        state = "frozen, dead or out of reach"
        if not self._was_answered:
            state = "UDP to its host may be blocked"
        if has_run is not None:
            state = "its process runs and is left alone" if has_run else "its process does not run"
        text = (
            f"{self.name} has not answered rank {self.rank} for {now - self.answered:.0f} s: "
            f"{state}."
        )
        if has_run is None and self._was_answered:
            text += f" {self.limits.fate_without()}"
        findings = [] if self._is_warned else [Finding(0, text)]
        self._is_warned = True
        if self.is_neighbour:
            if has_run is False and self.limits.is_time_to_end(stalled):
                findings.append(Finding(0, f"{text} It is killed.", action=Action.END_RANK))
        elif self._was_answered and self.limits.is_time_to_end_job(stalled / 2):
            text = f"{text} Rank {self.rank} ends."
            findings.append(Finding(0, text, action=Action.END_JOB))
        return findings
