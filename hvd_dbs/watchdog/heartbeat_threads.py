"""The threads that carry heartbeats from every rank to rank 0, beside the collectives.

Datagrams: nothing to connect, nothing that blocks, and a lost one does not matter. Other ranks
send to rank 0's host, to a port that the system chooses; rank 0 answers each packet.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from hvd_dbs.watchdog.contacts import Contact, Endpoint, address_for
from hvd_dbs.watchdog.heartbeat import LEFT, WAITING, Answer, Heartbeat
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.packets import MOST_BYTES, Channel, KeyPair, claimed_rank
from hvd_dbs.watchdog.process_kill import ProcessName, ProcessObserver, kill
from hvd_dbs.watchdog.rank_zero_watch import RankZeroWatch
from hvd_dbs.watchdog.stall_detection import Action, Finding, StallDetector

_LOGGER = logging.getLogger(__name__)

_MOST_REJECTED = 4000
"""Packets of others that are looked at in a period: some 50 ms of work."""
_MOST_NEW_KEYS = 20
"""Keys that are computed in a period, of some 3 ms each."""
_MOST_LOOKS = 64
"""Processes that a rank is asked to look at."""
_OLDEST_ANSWERED = 4
"""Packets sent since the one that an answer may be about."""
_SLICE = 0.05


class _HeartbeatThread:
    """A thread with a socket that does the same each period until it stops or has nothing to do.

    Args:
        name: Of the thread.
        sample: Gives this rank's heartbeat.
        processes: The process of each rank.
        period: Seconds.
        end_process: What ends this process.
    """

    def __init__(
        self,
        name: str,
        sample: Callable[[], Heartbeat],
        processes: Sequence[ProcessName],
        period: float,
        end_process: Callable[[int], Any],
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sample = sample
        self._processes = processes
        self._period = period
        self._end_process = end_process
        self._observer = ProcessObserver()
        self._last: Heartbeat | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which lets the others know, and closes the socket."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._last = beat = self._sample()
                if beat.has_left:
                    break
                if not self._do_period(beat, time.monotonic() + self._period):
                    return
            if self._last is not None:
                beat = self._last
                self._say_goodbye(beat if beat.has_left else replace(beat, doing=LEFT))
        except Exception as error:  # Watching never ends the training.
            _LOGGER.warning("%s has ended: %r", self._thread.name, error)
        finally:
            self._socket.close()

    def _do_period(self, beat: Heartbeat, end: float) -> bool:
        """A period up to this time; false if it was the last one."""
        raise NotImplementedError

    def _say_goodbye(self, beat: Heartbeat) -> None:
        raise NotImplementedError

    def _accept(self, data: bytes, sender: Any) -> bool:
        """Takes up what has arrived; false if it is not of this training."""
        raise NotImplementedError

    def _receive(self, end: float) -> bool:
        """Takes up what arrives until a time; false if it was so much that some was not read."""
        num_rejected = 0
        while (left := end - time.monotonic()) > 0 and not self._stopped.is_set():
            self._socket.settimeout(min(left, _SLICE))
            try:
                data, sender = self._socket.recvfrom(MOST_BYTES + 1)
            except TimeoutError:
                continue
            except OSError:  # Nobody listens there any more, or not yet.
                self._stopped.wait(min(left, _SLICE))
                continue
            try:
                num_rejected += not self._accept(data, sender)
            except (TypeError, ValueError) as error:  # Such as that of another version.
                _LOGGER.debug("a packet is rejected: %r", error)
                num_rejected += 1
            if num_rejected == _MOST_REJECTED:
                self._stopped.wait(end - time.monotonic())
                return False
        return True

    def _look_at(
        self, ranks: Iterable[int], to_kill: Iterable[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ranks of this host whose processes run, and those whose do not, which are killed."""
        running: list[int] = []
        frozen: list[int] = []
        for rank in ranks:
            process = self._processes[rank]
            has_run = self._observer.has_run(process)
            if has_run is None:
                continue
            (running if has_run else frozen).append(rank)
            if not has_run and rank in to_kill and kill(process):
                _LOGGER.error(
                    "rank %d (%s) is killed: its process does not run, and others wait for it.",
                    rank,
                    process,
                )
        return tuple(running), tuple(frozen)


class HeartbeatServer(_HeartbeatThread):
    """Rank 0's thread: receives heartbeats, judges, and logs who keeps the job waiting.

    Args:
        contacts: Those of all ranks.
        keys: This process's.
        detector: What judges.
        sample: Gives rank 0's own heartbeat; the last one has left training.
        end_process: What ends this process.

    Attributes:
        endpoint: Where it listens.

    Raises:
        OSError: If the address of the job's interface cannot be used.
    """

    def __init__(
        self,
        contacts: Sequence[Contact],
        keys: KeyPair,
        detector: StallDetector,
        sample: Callable[[], Heartbeat],
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        processes = detector.processes
        super().__init__("hvd_dbs watchdog", sample, processes, detector.limits.period, end_process)
        try:
            self._socket.bind((address_for(contacts), 0))
        except OSError:
            self._socket.close()
            raise
        address, port = self._socket.getsockname()
        self.endpoint = Endpoint(address, port, secrets.token_hex(16))
        self._publics = [contact.public for contact in contacts]
        self._keys = keys
        self._detector = detector
        self._channels: dict[int, Channel] = {}
        self._senders: dict[int, Any] = {}
        self._to_end: dict[int, int] = {}
        self._silent_by_host: dict[str, list[int]] = {}
        self._num_new_keys = 0
        self._is_flooded = False

    def _do_period(self, beat: Heartbeat, end: float) -> bool:
        self._num_new_keys = 0
        has_read_all = self._receive(end)
        now = time.monotonic()
        if not has_read_all:
            self._detector.excuse(range(len(self._processes)), now)
            if not self._is_flooded:
                _LOGGER.warning(
                    "so many foreign datagrams arrive on UDP port %d that heartbeats are lost: "
                    "frozen ranks cannot be named.",
                    self.endpoint.port,
                )
            self._is_flooded = True
        running, frozen = self._look_at(*self._to_look_at(0))
        self._report(self._detector.note(replace(beat, running=running, frozen=frozen), now))
        self._report(self._detector.judge(now))
        self._silent_by_host = {}
        for rank in self._detector.to_look_at:
            self._silent_by_host.setdefault(self._processes[rank].host, []).append(rank)
        return True

    def _accept(self, data: bytes, sender: Any) -> bool:
        rank, now = claimed_rank(data), time.monotonic()
        if rank is None or not 0 < rank < len(self._processes):
            return False
        channel = self._channel(rank)
        if channel is None:
            self._detector.excuse([rank], now)
            return False
        fields = channel.open(data)
        if fields is None:
            return False
        beat = Heartbeat.from_fields(fields)
        host = self._processes[rank].host
        if beat.rank != rank or not self._are_on(host, (*beat.running, *beat.frozen)):
            return False
        self._senders[rank] = sender
        self._report(self._detector.note(beat, now))
        look_at, to_kill = self._to_look_at(rank)
        end = self._to_end.get(rank, -1)
        self._send(rank, Answer(channel.last_received, look_at, to_kill, end))
        return True

    def _channel(self, rank: int) -> Channel | None:
        """Computed when the rank is first heard of; None: too many were in this period."""
        public = self._publics[rank]
        if rank not in self._channels:
            if not self._keys.knows(public):
                if self._num_new_keys == _MOST_NEW_KEYS:
                    return None
                self._num_new_keys += 1
            shared = self._keys.shared(public)
            training = self.endpoint.training
            self._channels[rank] = Channel.of_pair(shared, training, rank, is_rank_0=True)
        return self._channels[rank]

    def _send(self, rank: int, answer: Answer) -> None:
        try:
            self._socket.sendto(self._channels[rank].pack(asdict(answer)), self._senders[rank])
        except OSError as error:
            _LOGGER.debug("no answer to rank %d: %r", rank, error)

    def _say_goodbye(self, beat: Heartbeat) -> None:
        for rank in self._senders:
            for _ in range(2):  # One may be lost.
                self._send(rank, Answer(self._channels[rank].last_received, left=beat.doing))

    def _to_look_at(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Silent ranks of this rank's host, and those of them to be killed if they are frozen."""
        ranks = self._silent_by_host.get(self._processes[rank].host, [])[:_MOST_LOOKS]
        return tuple(ranks), tuple(other for other in ranks if self._detector.to_look_at[other])

    def _are_on(self, host: str, ranks: Iterable[int]) -> bool:
        size = len(self._processes)
        return all(0 <= rank < size and self._processes[rank].host == host for rank in ranks)

    def _report(self, findings: list[Finding]) -> None:
        for finding in findings:
            level = logging.INFO if finding.is_over else logging.WARNING
            _LOGGER.log(level, "%s", finding.text)
            if finding.action is Action.END_RANK and finding.rank != 0:
                self._to_end[finding.rank] = finding.progress
            elif finding.action is not Action.NONE:
                self._end_process(1)


class HeartbeatClient(_HeartbeatThread):
    """Another rank's thread: sends a heartbeat each period, and takes up rank 0's answers.

    Args:
        rank: This rank.
        endpoint: Where rank 0 listens.
        contacts: Those of all ranks.
        keys: This process's.
        limits: When ranks are named and ended.
        sample: Gives this rank's heartbeat; the last one has left training.
        end_process: What ends this process.
    """

    def __init__(
        self,
        rank: int,
        endpoint: Endpoint,
        contacts: Sequence[Contact],
        keys: KeyPair,
        limits: Limits,
        sample: Callable[[], Heartbeat],
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        processes = [contact.process for contact in contacts]
        super().__init__("hvd_dbs heartbeat", sample, processes, limits.period, end_process)
        try:  # From now on only what rank 0 sends arrives.
            self._socket.connect((endpoint.address, endpoint.port))
        except OSError as error:
            _LOGGER.debug("no heartbeats to %s: %r", endpoint, error)
        shared = keys.shared(contacts[0].public)
        self._channel = Channel.of_pair(shared, endpoint.training, rank, is_rank_0=False)
        self._watch = RankZeroWatch(
            f"rank 0 ({processes[0]}, {endpoint.address}, UDP port {endpoint.port})",
            rank,
            limits,
            processes[0].host == processes[rank].host,
            time.monotonic(),
        )
        self._answer = Answer(0)

    def _do_period(self, beat: Heartbeat, end: float) -> bool:
        running, frozen = self._look_at(self._answer.look_at, self._answer.kill)
        self._send(replace(beat, running=running, frozen=frozen))
        self._receive(end)
        if self._answer.left:
            return False
        now, has_run = time.monotonic(), None
        if self._watch.is_neighbour and now - self._watch.answered > self._period:
            has_run = self._observer.has_run(self._processes[0])
        for finding in self._watch.judge(beat, has_run, now):
            _LOGGER.warning("%s", finding.text)
            if finding.action is Action.END_RANK:
                kill(self._processes[0])
            elif finding.action is Action.END_JOB:
                self._end_process(1)
        return True

    def _accept(self, data: bytes, sender: Any) -> bool:
        fields = self._channel.open(data)
        if fields is None:
            return False
        answer = Answer.from_fields(fields)
        num_sent = self._channel.num_sent
        if not num_sent - _OLDEST_ANSWERED < answer.answers <= num_sent:
            return False
        if not all(0 <= rank < len(self._processes) for rank in answer.look_at):
            return False
        self._answer = answer
        self._watch.note_answer(time.monotonic())
        if answer.end >= 0:
            self._end_if_stuck(answer.end)
        return True

    def _end_if_stuck(self, progress: int) -> None:
        beat = self._sample()
        if beat.progress == progress and beat.doing != WAITING and not beat.has_left:
            _LOGGER.error("this rank ends: it has made no progress for too long.")
            self._end_process(1)

    def _send(self, beat: Heartbeat) -> None:
        try:
            self._socket.send(self._channel.pack(asdict(beat)))
        except OSError as error:
            _LOGGER.debug("no heartbeat: %r", error)

    def _say_goodbye(self, beat: Heartbeat) -> None:
        for _ in range(2):  # One may be lost.
            self._send(beat)
