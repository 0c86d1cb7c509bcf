"""Who keeps a job from going on: what ranks say of themselves in, names of the guilty out.

No clock and no network here: `heartbeat` carries the signs of life, a caller tells the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hvd_dbs.cluster.rank_names import name_ranks

WAITING = "waiting for others"
ENDED = "not training any more"

_SILENT_PERIODS = 5
"""A rank that has missed so many signs of life is silent: frozen, dead, or not to be reached."""


@dataclass(frozen=True)
class SignOfLife:
    """What a rank says of itself.

    Attributes:
        rank: Whose sign it is.
        place: Its host and process.
        progress: A number that grows with everything that it finishes.
        last_step: The last training step that it finished, as text.
        doing: What it is doing; `WAITING` and `ENDED` are known here, all else is text.
        process: Its process, for who has to end it.
    """

    rank: int
    place: str
    progress: int
    last_step: str
    doing: str
    process: str = ""


@dataclass(frozen=True)
class Finding:
    """One rank that keeps others waiting, or does so no more.

    Attributes:
        rank: Which one; -1: all of them wait.
        text: One line for the log.
        is_over: Whether it goes on again.
        abort: Whether it has to be ended.
        silent: Whether it cannot be told so.
        process: Its process.
    """

    rank: int
    text: str
    is_over: bool = False
    abort: bool = False
    silent: bool = False
    process: str = ""


@dataclass
class _Known:
    sign: SignOfLife
    seen: float
    since: float  # Its last progress.
    held_up: float  # Since when it has kept others waiting, as far as it is known.
    warned: bool = False
    aborted: bool = False


@dataclass
class Standstill:
    """Finds ranks that make no progress and do not wait for others.

    Attributes:
        size: Number of ranks.
        period: Seconds between two signs of life of a rank.
        warn_seconds: After how long without progress a rank is named.
        abort_seconds: After how long it is to be ended; None: never.
        begin: The time at which the ranks were told to give signs of life.
    """

    size: int
    period: float
    warn_seconds: float
    abort_seconds: float | None
    begin: float
    _ranks: dict[int, _Known] = field(default_factory=dict)
    _judged: float = field(default=float("inf"))

    def note(self, sign: SignOfLife, now: float) -> list[Finding]:
        """Takes up a sign of life; a finding if a rank that was named goes on."""
        known = self._ranks.get(sign.rank)
        if known is None:
            self._ranks[sign.rank] = _Known(sign, now, now, now)
            return []
        findings = []
        if sign.progress != known.sign.progress:
            if known.warned:
                text = f"{_name(sign)} goes on after {now - known.since:.0f} s."
                findings.append(Finding(sign.rank, text, is_over=True))
            known.since, known.warned, known.aborted = now, False, False
        if known.since == now or known.sign.doing == WAITING:
            known.held_up = now
        known.sign, known.seen = sign, now
        return findings

    def judge(self, now: float) -> list[Finding]:
        """Ranks to be named now, each once, and ranks to be ended."""
        for rank in range(self.size):
            if rank not in self._ranks:
                sign = SignOfLife(rank, "never heard of", -1, "none", "unknown")
                self._ranks[rank] = _Known(sign, self.begin, self.begin, self.begin)
        if now - self._judged > _SILENT_PERIODS * self.period:
            for known in self._ranks.values():  # Who judges was frozen: nobody else was silent.
                known.seen = now
        self._judged = now
        waiting = [
            rank
            for rank, known in self._ranks.items()
            if known.sign.doing == WAITING and not self._is_silent(known, now)
        ]
        guilty = [
            known
            for rank, known in self._ranks.items()
            if rank not in waiting and (known.sign.doing != ENDED or waiting)
        ]
        guilty = [known for known in guilty if now - known.held_up >= self.warn_seconds]
        if not guilty and len(waiting) == self.size:
            return self._all_wait(now)
        return [finding for known in guilty for finding in self._found(known, now, sorted(waiting))]

    def ranks_on(self, is_on: Callable[[str], bool]) -> list[int]:
        """Ranks other than 0 that are heard of, and whose process is where it is asked for."""
        return [
            rank
            for rank, known in self._ranks.items()
            if rank and known.sign.process and is_on(known.sign.process) and not known.aborted
        ]

    def _found(self, known: _Known, now: float, waiting: list[int]) -> list[Finding]:
        sign, seconds = known.sign, now - known.held_up
        silent = self._is_silent(known, now)
        doing = f"It is {sign.doing}."
        if silent:
            doing = (
                f"It has been silent for {now - known.seen:.0f} s: frozen, dead or out of reach. "
                f"Before, it was {sign.doing}."
            )
        wait = "waits" if len(waiting) == 1 else "wait"
        others = f" {name_ranks(waiting).capitalize()} {wait} for it." if waiting else ""
        text = (
            f"{_name(sign)} has made no progress for {seconds:.0f} s. "
            f"Last finished step: {sign.last_step}. {doing}{others}"
        )
        findings = [] if known.warned else [Finding(sign.rank, text, silent=silent)]
        known.warned = True
        if self._is_time_to_abort(seconds) and not known.aborted:
            known.aborted = True
            text = f"{text} It is ended, after {self.abort_seconds:g} s."
            findings.append(Finding(sign.rank, text, False, True, silent, sign.process))
        return findings

    def _all_wait(self, now: float) -> list[Finding]:
        seconds = min(now - known.since for known in self._ranks.values())
        if seconds < self.warn_seconds:
            return []
        steps = "; ".join(
            f"rank {rank}: {known.sign.last_step}" for rank, known in sorted(self._ranks.items())
        )
        text = (
            f"all ranks have waited for each other for {seconds:.0f} s: they are not in the same "
            f"operation. Last finished steps: {steps[:2000]}."
        )
        findings = []
        if not all(known.warned for known in self._ranks.values()):
            findings.append(Finding(-1, text))
        if self._is_time_to_abort(seconds):
            text = f"{text} The job is ended, after {self.abort_seconds:g} s."
            findings.append(Finding(-1, text, abort=True, silent=True))
        for known in self._ranks.values():
            known.warned = True
        return findings

    def _is_silent(self, known: _Known, now: float) -> bool:
        return known.sign.doing != ENDED and now - known.seen > _SILENT_PERIODS * self.period

    def _is_time_to_abort(self, seconds: float) -> bool:
        return self.abort_seconds is not None and seconds >= self.abort_seconds


def _name(sign: SignOfLife) -> str:
    return f"rank {sign.rank} ({sign.place})"
