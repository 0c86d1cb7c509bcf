"""Which rank keeps a job from making progress, from the heartbeats of all ranks.

Pure: no clock and no network. Threads carry the heartbeats; a caller gives the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hvd_dbs.rank_names import name_ranks
from hvd_dbs.watchdog.findings import Action, Finding, shortened
from hvd_dbs.watchdog.heartbeat import BUILDING, WAITING, Heartbeat
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.process_kill import ProcessName

_COMPUTING = 0.05
"""Part of a core: a rank that uses more of it to compute is slow, not stuck."""
STEPS_WITHOUT = 2
"""Steps that others finish with a silent rank: it takes part, and only its heartbeats are lost.
One more may come to its end when a rank freezes."""


@dataclass(eq=False)
class _Known:
    beat: Heartbeat
    seen: float
    since: float  # Its last progress.
    held_up: float  # Since when it has kept others waiting, as far as it is known.
    computed: float  # When it was last seen to compute.
    waits_since: float  # If it waits.
    computing_mark: tuple[float, float] = (0.0, 0.0)  # A time, and its computing seconds then.
    excused: float = float("-inf")  # When heartbeats may last have been lost here.
    has_reported: bool = False
    is_warned: bool = False
    is_ended: bool = False
    why_silent: str = ""
    is_lost: bool = False  # Its heartbeats are lost: it takes part in training.
    running: float = float("-inf")  # When a neighbour last saw its process run.
    is_frozen: bool = False
    steps_when_silent: int | None = None  # Steps of the job when its silence began.


class _Waiting:
    """Ranks that report that they wait for others."""

    def __init__(self, ranks: list[_Known]) -> None:
        self.num = len(ranks)
        self.since = min((known.waits_since for known in ranks), default=float("-inf"))
        wait = "waits" if self.num == 1 else "wait"
        names = name_ranks([known.beat.rank for known in ranks]).capitalize()
        self.text = f" {names} {wait} for it." if ranks else ""


@dataclass
class StallDetector:
    """Finds ranks that make no progress and do not wait for others.

    Attributes:
        processes: The process of each rank.
        limits: When ranks are named and ended.
        begin: The time at which the ranks were asked for heartbeats.
        to_look_at: Silent ranks whose neighbours have to look whether their processes run, and
            whether they are to kill those that do not.
    """

    processes: Sequence[ProcessName]
    limits: Limits
    begin: float
    to_look_at: dict[int, bool] = field(default_factory=dict)
    _judged: float = field(default=float("inf"))
    _all_warned: bool = False
    _lost_warned: bool = False

    def __post_init__(self) -> None:
        begin = self.begin
        self._ranks = [
            _Known(Heartbeat(rank), begin, begin, begin, begin, begin, (begin, 0.0))
            for rank in range(len(self.processes))
        ]

    def note(self, beat: Heartbeat, now: float) -> list[Finding]:
        """Takes up a heartbeat; a finding if a rank that was named goes on."""
        known = self._ranks[beat.rank]
        findings = []
        if beat.progress != known.beat.progress:
            if known.is_warned:
                text = f"{self._name(beat.rank)} goes on after {now - known.since:.0f} s."
                findings.append(Finding(beat.rank, text, is_over=True))
            known.since, known.is_warned, known.is_ended = now, False, False
            self._all_warned = False
        if known.since == now or WAITING in (known.beat.doing, beat.doing):
            known.held_up = now
        if known.since == now or beat.doing != WAITING:
            known.waits_since = now
        self._note_computing(known, beat, now)
        known.beat, known.seen = beat, now
        known.has_reported, known.is_lost, known.is_frozen = True, False, False
        for rank in beat.running:
            self._ranks[rank].running, self._ranks[rank].is_frozen = now, False
        for rank in beat.frozen:
            self._ranks[rank].is_frozen = True
        return findings

    def excuse(self, ranks: Iterable[int], now: float) -> None:
        """Notes that nobody could read what these ranks have sent, so that they are not silent."""
        for rank in ranks:
            self._ranks[rank].excused = now

    def judge(self, now: float) -> list[Finding]:
        """Ranks to be named now, each once, and ranks to be ended."""
        if now - self._judged > self.limits.silent_seconds:
            for known in self._ranks:  # Who judges was frozen, as all of them may have been.
                known.seen = known.held_up = known.waits_since = now
        self._judged = now
        self.to_look_at = {}
        silent: list[_Known] = []
        reporting: list[_Known] = []
        for known in self._ranks:
            if known.beat.has_left or now - known.seen <= self.limits.silent_seconds:
                reporting.append(known)
            elif now - known.excused > self.limits.silent_seconds:
                silent.append(known)
        self._find_lost(silent, reporting)
        waiting = _Waiting([known for known in reporting if known.beat.doing == WAITING])
        if waiting.num == len(self._ranks):
            return self._all_wait(now)
        findings = self._warn_of_lost(silent, now)
        for known in reporting:
            if known.beat.doing != WAITING:
                findings += self._standing(known, waiting, now)
        if waiting.num:  # Else nobody knows whether silent ranks hold up the job.
            places = {self._place(known) for known in reporting if not known.beat.has_left}
            all_wait = waiting.num == len(reporting)
            for known in silent:
                has_neighbour = self._place(known) in places
                findings += self._silent(known, has_neighbour, all_wait, waiting, now)
        return shortened(findings)

    def _note_computing(self, known: _Known, beat: Heartbeat, now: float) -> None:
        time, seconds = known.computing_mark
        if not known.has_reported:
            known.computing_mark = (now, beat.computing_seconds)
        elif now - time >= self.limits.silent_seconds:
            if beat.computing_seconds - seconds > _COMPUTING * (now - time):
                known.computed = now
            known.computing_mark = (now, beat.computing_seconds)
        if beat.doing == BUILDING:
            known.computed = now

    def _find_lost(self, silent: list[_Known], reporting: list[_Known]) -> None:
        """Notes silent ranks while others finish steps, which they cannot without them."""
        steps = max((known.beat.num_steps for known in reporting), default=0)
        for known in reporting:
            known.steps_when_silent = None
        for known in silent:
            if known.steps_when_silent is None:
                known.steps_when_silent = steps
            elif steps >= known.steps_when_silent + STEPS_WITHOUT:
                known.is_lost = True

    def _warn_of_lost(self, silent: list[_Known], now: float) -> list[Finding]:
        lost = [k for k in silent if k.is_lost and now - k.seen >= self.limits.warn_seconds]
        if self._lost_warned or not lost:
            return []
        self._lost_warned = True
        ranks = [known.beat.rank for known in lost]
        hosts = list(dict.fromkeys(self.processes[rank].host for rank in ranks))
        text = (
            f"no heartbeats of {name_ranks(ranks)} (host{'s' if len(hosts) > 1 else ''} "
            f"{', '.join(hosts[:8])}) arrive, though training goes on: UDP to rank 0's host is "
            f"blocked. Where such a rank freezes, it cannot be named."
        )
        return [Finding(-1, text)]

    def _standing(self, known: _Known, waiting: _Waiting, now: float) -> list[Finding]:
        """A rank that reports, and does not wait."""
        beat, seconds = known.beat, now - known.held_up
        if seconds < self.limits.warn_seconds or (beat.has_left and not waiting.num):
            return []
        computes = ""
        if known.computed > max(known.held_up, now - 2 * self.limits.silent_seconds):
            computes = " It computes: it is slow, not stuck."
        text = self._text(known, f"It is {beat.doing}.{computes}", seconds, waiting)
        findings = self._named(known, text)
        begin = max(known.held_up, known.computed, waiting.since)
        may_end = waiting.num > 0 and not beat.has_left and not known.is_ended
        if may_end and self.limits.is_time_to_end(now - begin):
            known.is_ended = True
            text = f"{text} It is ended, after {self.limits.abort_seconds:g} s."
            findings.append(
                Finding(beat.rank, text, action=Action.END_RANK, progress=beat.progress)
            )
        return findings

    def _silent(
        self,
        known: _Known,
        has_neighbour: bool,
        all_wait: bool,
        waiting: _Waiting,
        now: float,
    ) -> list[Finding]:
        """A rank that does not report any more, while others wait."""
        rank, limits = known.beat.rank, self.limits
        stalled = now - max(known.seen, known.excused, waiting.since)
        is_time = limits.is_time_to_end(stalled) and not known.is_lost
        if has_neighbour:
            self.to_look_at[rank] = is_time
        if stalled < limits.warn_seconds or known.is_ended:
            return []
        why = _why_silent(known)
        known.is_warned &= why == known.why_silent  # A neighbour has found out more.
        known.why_silent = why
        text = self._text(
            known,
            f"It has been silent for {now - known.seen:.0f} s: {why}. "
            f"Before, it was {known.beat.doing}.",
            now - known.held_up,
            waiting,
        )
        may_end_job = known.has_reported and not has_neighbour and not known.is_lost
        if may_end_job:
            text += f" No other rank of its host reports. {limits.fate_without()}"
        findings = self._named(known, text)
        if known.is_frozen and is_time:
            known.is_ended = True
            text = f"{text} A rank on its host kills it, after {limits.abort_seconds:g} s."
            findings.append(Finding(rank, text))
        elif may_end_job and all_wait and limits.is_time_to_end_job(stalled):
            known.is_ended = True
            findings.append(Finding(rank, text, action=Action.END_JOB))
        return findings

    def _all_wait(self, now: float) -> list[Finding]:
        seconds = now - max(known.waits_since for known in self._ranks)
        if seconds < self.limits.warn_seconds or self._all_warned:
            return []
        self._all_warned = True
        beats = [known.beat for known in self._ranks]
        if len({(beat.operation, beat.last_step) for beat in beats}) == 1:
            text = (
                f"all ranks have been in the same operation for {seconds:.0f} s: "
                f"{beats[0].operation}, after {beats[0].last_step}. The exchange takes that long: "
                f"the network is slow, or the link of a rank is."
            )
            return [Finding(-1, text)]
        waits = "; ".join(
            f"rank {beat.rank}: {beat.operation}, after {beat.last_step}" for beat in beats
        )
        text = (
            f"all ranks have waited for each other for {seconds:.0f} s: they are not in the same "
            f"operation. {waits[:2000]}. Horovod ends such a job if "
            f"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set."
        )
        return [Finding(-1, text)]

    def _text(self, known: _Known, doing: str, seconds: float, waiting: _Waiting) -> str:
        return (
            f"{self._name(known.beat.rank)} has made no progress for {seconds:.0f} s. "
            f"Last finished step: {known.beat.last_step}. {doing}{waiting.text}"
        )

    def _named(self, known: _Known, text: str) -> list[Finding]:
        findings = [] if known.is_warned else [Finding(known.beat.rank, text)]
        known.is_warned = True
        return findings

    def _place(self, known: _Known) -> tuple[str, str]:
        return self.processes[known.beat.rank].place

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self.processes[rank]})"


def _why_silent(known: _Known) -> str:
    if known.is_lost:
        return "its heartbeats are lost, for it has taken part in training meanwhile"
    if known.is_frozen:
        return "its process does not run"
    if known.running > known.seen:
        return "its process runs and is left alone; its heartbeats may be blocked"
    return "frozen, dead or out of reach" if known.has_reported else "no heartbeat has arrived yet"
