"""The journal of a job: what was seen and decided in each round, one JSON object a line."""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvd_dbs.job.journal_entries import ENTRIES, JobEntry, OtherEntry, RoundEntry, entry_of

_LOGGER = logging.getLogger(__name__)

_BEGINNING = '{"entry"'

MOST_BYTES = 256 * 2**20
"""A journal that has grown to this is renamed, and a new one is begun: half a million rounds of 16
ranks, days of the most frequent decisions, and what a report reads in seconds."""


class Journal:
    """Writes entries after what a file has already.

    What cannot be written is lost, and said once. A file that has grown large is renamed, with ".1"
    after its name, and a new one is begun: together they stay below twice `most_bytes`.

    Args:
        path: The file.
        most_bytes: Size from which on a file is renamed.
    """

    def __init__(self, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"journal={path!r}; expected the path of a file, or None.")
        if not os.fspath(path):
            raise ValueError("journal='' is empty; expected the path of a file, or None for none.")
        self._path = Path(path).absolute()  # Training may go to another folder.
        self._most_bytes = most_bytes
        self._job: JobEntry | None = None
        self._may_be_cut = True
        self._has_failed = False

    def check(self) -> None:
        """Raises ValueError if the file cannot be written to, or holds something else."""
        try:
            with self._path.open("a"):
                pass
            if self._path.is_file():
                with self._path.open(errors="replace") as file:
                    first = file.read(40)
                # The first line too may have been cut short.
                if not _BEGINNING.startswith(first[: len(_BEGINNING)]):
                    raise ValueError(
                        f"journal={str(self._path)!r} holds something else, which begins with "
                        f"{first!r}. Give a new file, or one that is a journal already."
                    )
        except OSError as error:
            raise ValueError(
                f"journal={str(self._path)!r} cannot be written to: {error.strerror}. Give a file "
                f"in a folder that exists on rank 0's host."
            ) from error

    def write(self, entry: JobEntry | RoundEntry) -> None:
        """Writes an entry, and waits for the disk."""
        try:
            if isinstance(entry, JobEntry):
                self._job = entry
            may_be_cut, self._may_be_cut = self._may_be_cut, True
            with self._path.open("a") as file:
                text = _line(entry)
                # The file is new and the job is not, or its entry may be one of those lost.
                if (file.tell() == 0 or may_be_cut) and self._job not in (None, entry):
                    text = _line(self._job) + text
                # A line that was cut short, by us or by who wrote before, must not spoil this one.
                is_behind = may_be_cut and file.tell() > 0
                file.write("\n" + text if is_behind else text)
                size = file.tell()
            self._may_be_cut = False
            if size >= self._most_bytes and self._path.is_file():
                self._path.replace(f"{self._path}.1")
        except Exception as error:  # Whatever it is, it is no reason to end a training.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            _LOGGER.warning(
                "cannot write to the journal %s, so entries are missing in it: %s",
                self._path,
                error,
            )
        self._has_failed = True


@dataclass(frozen=True)
class JournalPart:
    """Rounds of one job with the same ranks and the same global batch size."""

    job: JobEntry
    rounds: tuple[RoundEntry, ...]


def read_journal(path: Path) -> tuple[list[JournalPart], int]:
    """The parts of a journal, first to last, and how many lines of it cannot be read.

    Raises:
        ValueError: If it cannot be read, or has no round.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    parts: list[tuple[JobEntry, list[RoundEntry]]] = []
    num_damaged = 0
    for line in lines:
        if not line.strip():
            continue
        entry = entry_of(line)
        if isinstance(entry, JobEntry):
            parts.append((entry, []))
        elif isinstance(entry, OtherEntry):
            continue
        elif entry is not None and parts and _is_of(entry, parts[-1][0]):
            parts[-1][1].append(entry)
        else:
            num_damaged += 1
    whole = [JournalPart(job, tuple(rounds)) for job, rounds in parts if rounds]
    if parts and not whole:
        raise ValueError(f"{path}: the job has not come to a decision yet.")
    if not whole:
        raise ValueError(
            f"{path} has no round of a job; expected the file that a balancer was given as "
            f'journal=, such as hvd.Balancer(..., journal="run.jsonl").'
        )
    return whole, num_damaged


def _is_of(entry: RoundEntry, job: JobEntry) -> bool:
    return len(entry.plan) == len(job.hosts) and sum(entry.plan) == job.global_batch_size


def _line(entry: JobEntry | RoundEntry) -> str:
    kind = next(name for name, one in ENTRIES.items() if isinstance(entry, one))
    return json.dumps({"entry": kind, **_plain(asdict(entry))}, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """JSON data without NaN, of no more digits than anybody measures."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
