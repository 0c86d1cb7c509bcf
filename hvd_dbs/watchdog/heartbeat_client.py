"""Another rank's end of the heartbeats."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from hvd_dbs.watchdog.contacts import Contact, Endpoint
from hvd_dbs.watchdog.findings import Action
from hvd_dbs.watchdog.heartbeat import WAITING, Answer, Heartbeat
from hvd_dbs.watchdog.heartbeat_thread import HeartbeatThread
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.packets import Channel, KeyPair
from hvd_dbs.watchdog.process_kill import kill
from hvd_dbs.watchdog.rank_zero_watch import RankZeroWatch

_LOGGER = logging.getLogger(__name__)

_OLDEST_ANSWERED = 4
"""Packets sent since the one that an answer may be about."""


class HeartbeatClient(HeartbeatThread):
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
            processes[0].place == processes[rank].place,
            time.monotonic(),
        )
        self._answer = Answer(0)

    def _do_period(self, beat: Heartbeat, end: float) -> bool:
        asked, self._answer = self._answer, Answer(0)  # Void where no other answer comes.
        running, frozen = self._look_at(asked.look_at, asked.kill)
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
