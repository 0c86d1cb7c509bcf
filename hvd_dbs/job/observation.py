"""What rank 0 sees of its job goes to log, journal and observers, beside the training."""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from hvd_dbs.balancing import Bounds
from hvd_dbs.comm.background import BackgroundThread
from hvd_dbs.comm.links import links_of
from hvd_dbs.job.bottleneck_log import BottleneckLog
from hvd_dbs.job.decision import Agreed, Received
from hvd_dbs.job.dispensable_ranks import DropDecision
from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.journal import Journal
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.lasting_events import LastingEvents
from hvd_dbs.job.observers.observer import Observer
from hvd_dbs.job.scores import RankScores, SlowEvent

_LOGGER = logging.getLogger(__name__)

_MOST_SECONDS_TO_WAIT = 5.0
_MOST_WAITING = 1000
"""Calls that wait for an observer that hangs, at most; later ones are lost."""


class Observation:
    """Turns rounds into entries and events, on a thread of its own.

    The journal and each observer have threads of their own, so that none waits for another.

    Args:
        journal: Where every round is written; None: nowhere.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._turn, self._journal_turn = _Turn("what rank 0 sees of the job"), _Turn("the journal")
        self._followers: list[tuple[Observer, _Turn]] = []
        self._job: JobEntry | None = None
        self._scores: RankScores | None = None
        self._events = LastingEvents()
        self._bottleneck, self._drop = BottleneckLog(), DropDecision()
        self._named_ranks: set[tuple[int, ...]] = set()

    def take_seconds(self) -> float:
        """Processor time that rounds took here since it was last asked for."""
        return sum(turn.take_seconds() for turn in self._turns)

    def add(self, observer: Observer) -> None:
        """Lets an observer follow from now on."""
        self._followers.append((observer, _Turn(f"the observer {observer!r}")))

    def begin(self, job: JobEntry) -> None:
        """Rounds of a training of this job follow."""
        self._turn.call(partial(self._begin, job))

    def change_ranks(self) -> None:
        """The job has other ranks: what was measured is of no use any more."""
        self._turn.call(self._change_ranks)

    def note(self, job: JobEntry, bounds: Bounds, agreed: Agreed, place: tuple[int, int]) -> None:
        """A round of a job is over.

        Args:
            job: The job now.
            bounds: Of its plans.
            agreed: What the round has come to.
            place: The epoch, and its steps that are over.
        """
        self._turn.call(partial(self._note, job, bounds, agreed, place), is_round=True)

    def end(self) -> None:
        """A training is over: what was seen of it is to be found now, if nothing hangs."""
        self._turn.call(self._end)
        for turn in self._turns:
            turn.wait()

    @property
    def _turns(self) -> tuple[_Turn, ...]:
        """That of rounds first, which makes calls on the others."""
        return (self._turn, self._journal_turn, *(turn for _, turn in self._followers))

    def _begin(self, job: JobEntry) -> None:
        if job != self._job:
            self._job = job
            self._write(job)
        for observer, turn in self._followers:
            turn.call(partial(observer.on_begin, job))

    def _change_ranks(self) -> None:
        self._job = self._scores = None
        self._events = LastingEvents()
        self._bottleneck.restart()
        self._drop = DropDecision()
        self._named_ranks.clear()

    def _note(self, job: JobEntry, bounds: Bounds, agreed: Agreed, place: tuple[int, int]) -> None:
        received = agreed.received
        if received is None:
            return
        if job != self._job:
            self._begin(job)
        scores = self._scores or RankScores.of(len(received.batch_sizes))
        self._scores, slow = scores.after(received.batch_sizes, received.busy_seconds)
        slow = self._events.after(slow, agreed.num_steps)
        entry = _entry(job, agreed, received, place, slow)
        events = [RankEvent.of(one, entry, self._scores, job.hosts) for one in slow]
        for event in events:
            _LOGGER.log(logging.WARNING if event.is_slow else logging.INFO, "%s", event.text)
        self._bottleneck.note(received, job.hosts, entry.links)
        measured = received.batch_sizes, received.busy_seconds
        found = self._drop.after(*measured, bounds, agreed.num_steps)
        if found is not None and found.ranks not in self._named_ranks:
            self._named_ranks.add(found.ranks)
            _LOGGER.warning("%s", found.text(job.hosts))
        self._write(entry)
        for observer, turn in self._followers:
            turn.call(partial(observer.on_round, entry, self._scores), is_round=True)
            for event in events:
                turn.call(partial(observer.on_event, event))

    def _write(self, entry: JobEntry | RoundEntry) -> None:
        if self._journal is not None:
            self._journal_turn.call(partial(self._journal.write, entry), is_round=True)

    def _end(self) -> None:
        for observer, turn in self._followers:
            turn.call(observer.on_end)


class _Turn:
    """Calls one after the other on a thread of their own; what fails is said once.

    The thread ends with it, and each call holds it: what was asked for is done before.

    Args:
        name: Of what is called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = BackgroundThread(f"hvd_dbs {name}")
        weakref.finalize(self, self._thread.close).atexit = False
        self._waiting: deque[Future[None]] = deque()
        self._has_failed = False
        self._seconds: deque[float] = deque()

    def take_seconds(self) -> float:
        """Processor time of the rounds that are over since it was last asked for."""
        return sum(self._seconds.popleft() for _ in range(len(self._seconds)))

    def call(self, function: Callable[[], None], is_round: bool = False) -> None:
        """Calls it, sooner or later; what a round takes is counted."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if len(self._waiting) >= _MOST_WAITING:
            self._fail(f"it hangs, and {_MOST_WAITING} calls wait for it")
            return
        try:
            self._waiting.append(self._thread.start(partial(self._called, function, is_round)))
        except RuntimeError as error:  # There can be no more threads.
            self._fail(repr(error))

    def wait(self) -> None:
        """Waits until all was called, or has had time enough for it."""
        wait(self._waiting, _MOST_SECONDS_TO_WAIT)

    def _called(self, function: Callable[[], None], is_round: bool) -> None:
        begin = time.thread_time()
        try:
            function()
        except Exception as error:  # Whatever it is, it is no reason to end a training.
            self._fail(repr(error))
        if is_round:
            self._seconds.append(time.thread_time() - begin)

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            _LOGGER.warning("%s failed, and training goes on without it: %s", self._name, reason)
        self._has_failed = True


def _entry(
    job: JobEntry,
    agreed: Agreed,
    received: Received,
    place: tuple[int, int],
    events: tuple[SlowEvent, ...],
) -> RoundEntry:
    """What the journal has of a round."""
    epoch, step = place
    return RoundEntry(
        epoch=epoch,
        step=step,
        batch_sizes=tuple(received.batch_sizes.astype(int).tolist()),
        busy_seconds=tuple(received.busy_seconds.tolist()),
        cpu_load=tuple(received.cpu_load.tolist()),
        step_seconds=received.step_seconds,
        plan_before=agreed.before.batch_sizes,
        plan=agreed.decision.plan.batch_sizes,
        reason=agreed.decision.reason,
        predicted_seconds=agreed.decision.predicted_seconds,
        links=links_of(received.links, job.hosts) if job.hosts else (),
        first_bucket_seconds=tuple(received.first_bucket_seconds.tolist()),
        overlap_seconds=received.overlap_seconds,
        last_bucket_seconds=received.last_bucket_seconds,
        negotiation_seconds=received.negotiation_seconds,
        num_steps=agreed.num_steps,
        steps_ahead=agreed.steps_ahead,
        input_seconds=tuple(received.input_seconds.tolist()),
        throttled_share=tuple(received.throttled_share.tolist()),
        page_faults=tuple(received.page_faults.tolist()),
        quartile_seconds=tuple(received.quartile_seconds.tolist()),
        events=events,
    )
