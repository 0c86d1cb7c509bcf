"""Reads what is new in a journal that is being written."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry, entry_of

MOST_ROUNDS = 400
"""Newest rounds that are kept: enough for a verdict on them."""

_MOST_BYTES = 2**22
"""Bytes read at a time: of a journal that is long already, the rest follows at once."""


class Follower:
    """The newest part of a journal, read a piece at a time.

    A file that is replaced by a new one, as a journal that has grown large is, is read anew.

    Args:
        path: The journal, which need not exist yet.

    Attributes:
        new_rounds: Those of the last reading, the newest ones, of whatever part.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.new_rounds: deque[RoundEntry] = deque(maxlen=MOST_ROUNDS)
        self._restart(None)

    def _restart(self, inode: int | None) -> None:
        self._inode, self._offset, self._cut = inode, 0, b""
        self._job: JobEntry | None = None
        self._rounds: deque[RoundEntry] = deque(maxlen=MOST_ROUNDS)

    @property
    def part(self) -> JournalPart | None:
        """What was read of the newest part; None where it has no round yet."""
        if self._job is None or not self._rounds:
            return None
        return JournalPart(self._job, tuple(self._rounds))

    def read(self) -> bool:
        """Reads what was written since; returns whether there was anything.

        Raises:
            OSError: If the file is there and cannot be read.
        """
        has_read = False
        self.new_rounds.clear()
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._restart(status.st_ino)
                file.seek(self._offset)
                while piece := file.read(_MOST_BYTES):
                    has_read = True
                    self._offset += len(piece)
                    *lines, self._cut = (self._cut + piece).split(b"\n")
                    for line in lines:
                        self._take(line)
        except FileNotFoundError:
            self._restart(None)
        return has_read

    def _take(self, line: bytes) -> None:
        entry = entry_of(line.decode(errors="replace"))
        if isinstance(entry, JobEntry):
            self._job = entry
            self._rounds.clear()
        elif isinstance(entry, RoundEntry) and self._job is not None:
            is_of_job = len(entry.plan) == len(self._job.hosts)
            if is_of_job and sum(entry.plan) == self._job.global_batch_size:
                self._rounds.append(entry)
                self.new_rounds.append(entry)
