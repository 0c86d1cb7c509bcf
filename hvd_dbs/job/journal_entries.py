"""What the lines of a journal hold: the job, and its rounds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from hvd_dbs.comm.links import Link
from hvd_dbs.job.scores import SlowEvent

_T = TypeVar("_T")

VERSION = 2
"""Of the format that is written. Fields and kinds of entries are only ever added; a reader leaves
out those that it does not know."""


@dataclass(frozen=True)
class JobEntry:
    """What holds for the rounds after it.

    Attributes:
        hosts: Where each rank runs, by rank.
        strategy: Name of the strategy.
        global_batch_size: Samples of all ranks in a step.
        version: Of the format; 1 for journals that do not say it.
        time: When it was written, seconds since 1970.
    """

    hosts: tuple[str, ...]
    strategy: str
    global_batch_size: int
    version: int = VERSION
    time: float = field(default_factory=time.time, compare=False)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> JobEntry:
        """From JSON data; raises ValueError, LookupError or TypeError if it is something else."""
        return cls(
            hosts=_of_type(str, plain["hosts"]),
            strategy=_of_type(str, [plain["strategy"]])[0],
            global_batch_size=_counts([plain["global_batch_size"]])[0],
            version=_counts([plain.get("version", 1)])[0],
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
        steps_ahead: By how many steps data are prepared from then on: the plan holds after them; 0:
            unknown.
        input_seconds: How long a step waited for its data, part of the rank's own work, by rank;
            empty: unknown.
        throttled_share: Part of the time in which a rank's container had used up its quota of
            processor time, 0 to 1, by rank; empty: unknown.
        page_faults: Of a rank's process in a step, by rank; empty: unknown.
        quartile_seconds: Own work that a quarter of a rank's steps did not exceed, by rank; empty:
            unknown.
        events: Ranks that fell far below their own best speed, or have recovered.
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
    steps_ahead: int = 0
    input_seconds: tuple[float, ...] = ()
    throttled_share: tuple[float, ...] = ()
    page_faults: tuple[float, ...] = ()
    quartile_seconds: tuple[float, ...] = ()
    events: tuple[SlowEvent, ...] = ()
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
            steps_ahead=_counts([plain.get("steps_ahead", 0)])[0],
            input_seconds=_row(plain.get("input_seconds", ())),
            throttled_share=_row(plain.get("throttled_share", ())),
            page_faults=_row(plain.get("page_faults", ())),
            quartile_seconds=_seconds(plain.get("quartile_seconds", ())),
            events=tuple(_event(event) for event in plain.get("events", ())),
            time=_of_type(float, [plain["time"]])[0],
        )
        rows = [entry.batch_sizes, entry.busy_seconds, entry.cpu_load, entry.plan_before]
        optional = [entry.first_bucket_seconds, entry.input_seconds]
        optional += [entry.throttled_share, entry.page_faults, entry.quartile_seconds]
        rows += [row for row in optional if row]
        if any(event.rank >= len(entry.plan) for event in entry.events):
            raise ValueError("an event of a rank that there is not.")
        if any(len(row) != len(entry.plan) for row in rows):
            raise ValueError("a round with rows of different lengths.")
        return entry


@dataclass(frozen=True)
class OtherEntry:
    """One of a kind that this version does not know."""


ENTRIES: Mapping[str, type[JobEntry] | type[RoundEntry]] = MappingProxyType(
    {"job": JobEntry, "round": RoundEntry}
)
"""What a line may be, by its "entry"."""


def entry_of(line: str) -> JobEntry | RoundEntry | OtherEntry | None:
    """What a line of a journal says; None where it cannot be read."""
    try:
        plain = json.loads(line)
        kind = _of_type(str, [plain["entry"]])[0]
        return ENTRIES[kind].of(plain) if kind in ENTRIES else OtherEntry()
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None


def _event(plain: Mapping[str, Any]) -> SlowEvent:
    return SlowEvent(
        rank=_counts([plain["rank"]])[0],
        is_slow=_of_type(bool, [plain["is_slow"]])[0],
        score=_not_negative(plain["score"]),
    )


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


def _row(values: Iterable[float | None]) -> tuple[float, ...]:
    """Numbers from 0 on, others count as unknown."""
    return tuple(_not_negative(value) for value in values)


def _not_negative(value: float | None) -> float:
    seconds = _known([value])[0]
    return seconds if 0 <= seconds < math.inf else math.nan
