"""Where the ranks of an elastic job meet before Horovod connects them.

Horovod 0.28.1 connects the ranks of a new assignment as soon as each has been told its rank. Where
one of them dies meanwhile, or needs longer to start than the others wait, the connection fails in a
thread that nobody can catch: all ranks abort, and with them the job. So the ranks meet here first,
on the launcher's key-value store, and connect when all of them are seen alive at the same time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import horovod.tensorflow as hvd

from hvd_dbs.comm import failure_notice, launcher_store
from hvd_dbs.comm.collective import is_elastic
from hvd_dbs.elastic.ssh_keepalive import warn_without_keepalive
from hvd_dbs.rank_names import name_ranks
from hvd_dbs.watchdog.computing import communication_starts
from hvd_dbs.watchdog.crash_report import name_failures

_LOGGER = logging.getLogger(__name__)

START_VARIABLE = "HVD_DBS_START_SECONDS"
_START_SECONDS = 10.0
"""For those that are alive enough to be there; the launcher, which knows of processes that have
ended, waits for those that need longer."""
_SILENT_SECONDS = 10.0
_LAUNCHER_SECONDS = 30.0
"""For which the launcher may be out of reach: Gloo's timeout, by default."""
_LONG_WAIT = 60.0
"""Seconds without a place after which a rank says what the launcher waits for."""
_FRESH_SECONDS = 1.0
_SCOPE = "hvd_dbs"
_LONGEST_WAIT = 24 * 3600.0
"""Seconds for which a rank waits for a place. The launcher ends the job after `--elastic-timeout`,
which ranks do not know, and one that is out of reach is noticed before; this is for a frozen one.
"""


def init(*arguments: Any, **options: Any) -> None:
    """Horovod's `init`; in an elastic job it waits until all ranks have started.

    An error that ends this process names its rank from here on.

    Args:
        *arguments: Horovod's arguments in its order.
        **options: Horovod's options.
    """
    if has_store() and not hvd.is_initialized():
        slot = _Slot.from_environment()
        if slot.local_rank == 0:
            warn_without_keepalive()
        if not _Meeting(slot).held():
            _meet_anew().to_environment()
    with communication_starts():
        hvd.init(*arguments, **options)
    name_failures(failure_notice.of_job())


def start_seconds() -> float:
    """How long ranks wait for one that does not come, from `HVD_DBS_START_SECONDS`.

    Raises:
        ValueError: If it is no such time.
    """
    given = os.environ.get(START_VARIABLE)
    if given is None:
        return _START_SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{START_VARIABLE}={given!r} is no time to wait; expected a number of seconds above 0, "
            f"such as 30. Set one, or unset it."
        )
    return seconds


def has_store() -> bool:
    """Whether a launcher gives places anew to ranks that come and go, on its store."""
    return is_elastic() and launcher_store.is_there()


def rejoin() -> None:
    """Leaves the job that has changed and enters it as it is now, with another rank and size.

    Raises:
        SystemExit: If this rank is no part of the job any more.
    """
    hvd.shutdown()
    _meet_anew().to_environment()
    # Horovod would ask for its rank once more, and wait for all others to ask as well.
    elastic = os.environ.pop("HOROVOD_ELASTIC")
    try:
        with communication_starts():
            hvd.init()
    finally:
        os.environ["HOROVOD_ELASTIC"] = elastic
    name_failures()


@dataclass(frozen=True)
class _Slot:
    """A rank's place in the job, as Horovod's environment variables hold it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @classmethod
    def from_environment(cls) -> _Slot:
        names = [field.name for field in fields(cls)]
        return cls(*(int(os.environ[f"HOROVOD_{name.upper()}"]) for name in names))

    def to_environment(self) -> None:
        for field in fields(self):
            os.environ[f"HOROVOD_{field.name.upper()}"] = str(getattr(self, field.name))


def _meet_anew() -> _Slot:
    """Asks the launcher for a place until those who got one are alive at the same time."""
    while True:
        host, local_rank = os.environ["HOROVOD_HOSTNAME"], os.environ["HOROVOD_LOCAL_RANK"]
        # Answered when each rank has asked or is known to be dead.
        with _patience():
            answer = launcher_store.get(
                "rank_and_size", f"{host}:{local_rank}", _LAUNCHER_SECONDS, _LONGEST_WAIT
            )
        slot = _Slot(*map(int, (answer or "-1").split(",")))
        if slot.rank < 0:
            _LOGGER.warning("%s, slot %s, is no part of the job any more.", host, local_rank)
            raise SystemExit(0)
        if _Meeting(slot).held():
            return slot


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Says what the launcher is waiting for, where it takes long."""
    said = threading.Timer(
        _LONG_WAIT,
        _LOGGER.warning,
        [
            "the launcher has had no place for this rank for %.0f s: it waits until each process "
            "of the job has asked for one or has ended. One of them is frozen, or starts very "
            "slowly; kill it, and the others go on.",
            _LONG_WAIT,
        ],
    )
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


class _Meeting:
    """All ranks of one assignment show that they are alive; rank 0 watches and decides."""

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot
        self._pause = max(0.1, slot.size / 500)
        self._patience = start_seconds()

    def held(self) -> bool:
        """Whether all ranks are here; False: some are not, and all shall ask for a place anew."""
        return self._watch() if self._slot.rank == 0 else self._show()

    def _show(self) -> bool:
        rank, end = self._slot.rank, time.monotonic() + self._patience + 2 * _SILENT_SECONDS
        beat = 0
        while time.monotonic() < end:
            beat += 1
            self._put(str(rank), str(beat))
            answer = self._get("answer")
            if answer is not None:
                return answer == "go"
            time.sleep(self._pause)
        return False  # Rank 0 itself is not here.

    def _watch(self) -> bool:
        others = range(1, self._slot.size)
        beats: dict[int, tuple[str, float]] = {}
        begin = time.monotonic()
        while True:
            for rank in others:
                beat = self._get(str(rank))
                if beat is not None and beats.get(rank, ("", 0.0))[0] != beat:
                    beats[rank] = (beat, time.monotonic())
            now = time.monotonic()
            silent = [rank for rank, (_, seen) in beats.items() if now - seen > _SILENT_SECONDS]
            missing = [rank for rank in others if rank not in beats]
            fresh = max(_FRESH_SECONDS, 5 * self._pause)
            if not missing and all(now - seen < fresh for _, seen in beats.values()):
                self._put("answer", "go")
                return True
            if silent or (missing and now - begin > self._patience):
                _LOGGER.warning(
                    "no answer from %s (of %d); asking the launcher for other ones.",
                    name_ranks(silent or missing),
                    self._slot.size,
                )
                self._put("answer", "again")
                return False
            time.sleep(self._pause)

    def _get(self, key: str) -> str | None:
        return launcher_store.get(_SCOPE, key, _LAUNCHER_SECONDS)

    def _put(self, key: str, value: str) -> None:
        launcher_store.put(_SCOPE, key, value, _LAUNCHER_SECONDS)
