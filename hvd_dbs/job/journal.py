"""The journal of a job: what was seen and decided in each round, one JSON object a line."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from hvd_dbs.comm.background import BackgroundThread
from hvd_dbs.comm.links import Link

_LOGGER = logging.getLogger(__name__)

_MOST_SECONDS_TO_WAIT = 5.0
_BEGINNING = '{"entry"'

_T = TypeVar("_T")


@dataclass(frozen=True)
class JobEntry:
    """What holds for the rounds behind it.

    Attributes:
        hosts: Where each rank runs, by rank.
        strategy: Name of the strategy.
        global_batch_size: Samples of all ranks in a step.
        time: When it was written, seconds since 1970.
    """

    hosts: tuple[str, ...]
    strategy: str
    global_batch_size: int
    time: float = field(default_factory=time.time, compare=False)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> JobEntry:
        """From JSON data; raises ValueError, LookupError or TypeError if it is something else."""
        return cls(
            hosts=_of_type(str, plain["hosts"]),
            strategy=_of_type(str, [plain["strategy"]])[0],
            global_batch_size=_counts([plain["global_batch_size"]])[0],
            time=_of_type(float, [plain["time"]])[0],
        )


@dataclass(frozen=True)
class RoundEntry:
    """One round. What is unknown is NaN, and null in the file.

    Attributes:
        epoch: The epoch in which the decision fell.
        step: Its steps that were over then.
        batch_sizes: Local batch sizes that were measured, by rank.
        busy_seconds: A rank's own work in a step, by rank.
        cpu_load: Use of a rank's processors by others, 0 to 1, by rank.
        step_seconds: A whole step, which is the same on all ranks.
        plan_before: The plan in force for the one who decided, by rank.
        plan: The plan decided on, by rank.
        reason: Why.
        predicted_seconds: What a step of the plan before and of this one is expected to take,
            the communication measured so far included.
        links: Between hosts, the slowest first; what is known of them.
        first_bucket_seconds: A rank's own work in a step until its first bucket of gradients was
            ready, by rank; empty: unknown.
        overlap_seconds: Communication of all buckets but the last.
        last_bucket_seconds: That of the last one.
        negotiation_seconds: What a sum takes whatever its size.
        num_steps: Steps of training since the round before was begun, until this one was; 0:
            unknown.
        time: When it was written, seconds since 1970.
    """

    epoch: int
    step: int
    batch_sizes: tuple[int, ...]
    busy_seconds: tuple[float, ...]
    cpu_load: tuple[float, ...]
    step_seconds: float
    plan_before: tuple[int, ...]
    plan: tuple[int, ...]
    reason: str
    predicted_seconds: tuple[float, float]
    links: tuple[Link, ...] = ()
    first_bucket_seconds: tuple[float, ...] = ()
    overlap_seconds: float = math.nan
    last_bucket_seconds: float = math.nan
    negotiation_seconds: float = math.nan
    num_steps: int = 0
    time: float = field(default_factory=time.time, compare=False)

    @property
    def changed(self) -> bool:
        """Whether another plan was decided on."""
        return self.plan != self.plan_before

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> RoundEntry:
        """From JSON data; raises ValueError, LookupError or TypeError if it is something else."""
        before, after = _seconds(plain["predicted_seconds"])
        epoch, step = _counts([plain["epoch"], plain["step"]])
        entry = cls(
            epoch=epoch,
            step=step,
            batch_sizes=_counts(plain["batch_sizes"]),
            busy_seconds=_seconds(plain["busy_seconds"]),
            cpu_load=_known(plain["cpu_load"]),
            step_seconds=_seconds([plain["step_seconds"]])[0],
            plan_before=_counts(plain["plan_before"]),
            plan=_counts(plain["plan"]),
            reason=_of_type(str, [plain["reason"]])[0],
            predicted_seconds=(before, after),
            # Journals of older versions have none of these.
            links=tuple(Link.of(link) for link in plain.get("links", ())),
            first_bucket_seconds=_seconds(plain.get("first_bucket_seconds", ())),
            overlap_seconds=_not_negative(plain.get("overlap_seconds")),
            last_bucket_seconds=_not_negative(plain.get("last_bucket_seconds")),
            negotiation_seconds=_not_negative(plain.get("negotiation_seconds")),
            num_steps=_counts([plain.get("num_steps", 0)])[0],
            time=_of_type(float, [plain["time"]])[0],
        )
        rows = [entry.batch_sizes, entry.busy_seconds, entry.cpu_load, entry.plan_before]
        if entry.first_bucket_seconds:
            rows.append(entry.first_bucket_seconds)
        if any(len(row) != len(entry.plan) for row in rows):
            raise ValueError("a round with rows of different lengths.")
        return entry


ENTRIES: Mapping[str, type[JobEntry] | type[RoundEntry]] = MappingProxyType(
    {"job": JobEntry, "round": RoundEntry}
)
"""What a line may be, by its "entry"."""


class Journal:
    """Writes entries behind what a file has already, in a thread of its own.

    No step of training waits for the disk. What cannot be written is lost, and said once.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"journal={path!r}; expected the path of a file, or None.")
        if not os.fspath(path):
            raise ValueError("journal='' is empty; expected the path of a file, or None for none.")
        self._path = Path(path).absolute()  # Training may go to another folder.
        self._thread = BackgroundThread("hvd_dbs journal")
        self._last: Future[None] | None = None
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
        """Writes an entry, sooner or later."""
        try:
            self._last = self._thread.start(partial(self._append, entry))
        except RuntimeError as error:  # There can be no more threads.
            self._fail(error)

    def flush(self) -> None:
        """Waits until all is written, or the disk has had time enough for it."""
        if self._last is not None:
            wait([self._last], _MOST_SECONDS_TO_WAIT)

    def _append(self, entry: JobEntry | RoundEntry) -> None:
        try:
            kind = next(name for name, one in ENTRIES.items() if isinstance(entry, one))
            line = json.dumps({"entry": kind, **_plain(asdict(entry))}, allow_nan=False)
            with self._path.open("a") as file:
                # A line that was cut short, by us or by who wrote before, must not spoil this one.
                is_behind = self._may_be_cut and file.tell() > 0
                file.write(f"\n{line}\n" if is_behind else f"{line}\n")
            self._may_be_cut = False
        except Exception as error:  # Whatever it is, it is no reason to end a training.
            self._may_be_cut = True
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
        entry = _entry_of(line)
        if isinstance(entry, JobEntry):
            parts.append((entry, []))
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


def _entry_of(line: str) -> JobEntry | RoundEntry | None:
    try:
        plain = json.loads(line)
        return ENTRIES[plain["entry"]].of(plain)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None


def _is_of(entry: RoundEntry, job: JobEntry) -> bool:
    return len(entry.plan) == len(job.hosts) and sum(entry.plan) == job.global_batch_size


def _of_type(kind: type[_T], values: Iterable[Any]) -> tuple[_T, ...]:
    rows = tuple(values)
    if not rows or not all(type(value) is kind for value in rows):
        raise ValueError(f"expected {kind.__name__}, one or more.")
    return rows


def _counts(values: Iterable[Any]) -> tuple[int, ...]:
    counts = _of_type(int, values)
    if not all(0 <= count < 2**53 for count in counts):
        raise ValueError("expected numbers of things.")
    return counts


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    """Numbers that may be unknown."""
    return tuple(math.nan if value is None else float(value) for value in values)


def _seconds(values: Iterable[float | None]) -> tuple[float, ...]:
    """Those that nothing can take count as unknown."""
    return tuple(value if 0 < value < math.inf else math.nan for value in _known(values))


def _not_negative(value: float | None) -> float:
    seconds = _known([value])[0]
    return seconds if 0 <= seconds < math.inf else math.nan


def _plain(value: Any) -> Any:
    """JSON data without NaN, of no more digits than anybody measures."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
