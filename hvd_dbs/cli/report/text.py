"""What a journal says, as text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Plan
from hvd_dbs.cli.tables import table
from hvd_dbs.cli.wording import counted
from hvd_dbs.comm.links import Link
from hvd_dbs.job.bottleneck import Bottleneck
from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.job.step_parts import StepParts, percent

_FEW_ROUNDS = 5
_LEAST_GAIN = 1.05
_EQUALLY_FAST = 0.95
_MOST_RANKS = 16
_MOST_CHANGES = 10


@dataclass(frozen=True)
class RankFigures:
    """What some rounds say of the ranks; NaN: unknown.

    Attributes:
        batch_sizes: Local batch sizes in all of them, shape `[size]`.
        samples_per_second: Medians, shape `[size]`.
        waits: Parts of a step in which a rank waits for slower ones, medians, shape `[size]`.
        parts: Of a step, medians.
        cpu_load: Use of its processors by others, medians, shape `[size]`.
        step_seconds: Of a whole step, median.
    """

    batch_sizes: NDArray[np.int64]
    samples_per_second: NDArray[np.float64]
    waits: NDArray[np.float64]
    parts: StepParts
    cpu_load: NDArray[np.float64]
    step_seconds: float

    @property
    def gain(self) -> float:
        """How many times as fast all would be done with shares in proportion to their speeds."""
        busy_seconds = self.batch_sizes / self.samples_per_second
        return float(busy_seconds.max() * self.samples_per_second.sum() / self.batch_sizes.sum())

    @property
    def step_gain(self) -> float:
        """The same for whole steps, whose communication takes as long as before."""
        rest = self.parts.rest
        return 1 / (rest + (1 - rest) / self.gain)

    @classmethod
    def of(cls, rounds: tuple[RoundEntry, ...]) -> RankFigures:
        """Those of at least one round, all with the same batch sizes."""
        batch_sizes = np.array([entry.batch_sizes for entry in rounds])
        busy_seconds = np.array([entry.busy_seconds for entry in rounds])
        step_seconds = np.array([entry.step_seconds for entry in rounds])
        slowest = _of_known(np.nanmax, busy_seconds, axis=1)
        waits = (slowest[:, np.newaxis] - busy_seconds) / step_seconds[:, np.newaxis]
        return cls(
            batch_sizes=batch_sizes[0],
            samples_per_second=_median(batch_sizes / busy_seconds),
            waits=_median(waits),
            parts=StepParts(*_median(np.array([StepParts.of(one).as_row for one in rounds]))),
            cpu_load=_median(np.array([entry.cpu_load for entry in rounds])),
            step_seconds=float(_median(step_seconds)),
        )


def text_of(part: JournalPart, with_all: bool = False) -> str:
    """Title, ranks, what balancing has come to, and changes of plan.

    Args:
        part: At least one round.
        with_all: Whether to show all ranks and changes, however many there are.
    """
    known = tuple(entry for entry in part.rounds if np.isfinite(entry.step_seconds))
    lines = [_title(part)]
    if known:
        first = RankFigures.of(_alike(known[:_FEW_ROUNDS]))
        last = RankFigures.of(_alike(known[: -_FEW_ROUNDS - 1 : -1]))
        lines += ["", _ranks(part, first, last, with_all), "", _outcome(part, first, last)]
    else:
        lines += ["", "No round has measured a step yet."]
    return "\n".join([*lines, *_changes(part, with_all)])


def _alike(rounds: tuple[RoundEntry, ...]) -> tuple[RoundEntry, ...]:
    """The first ones, as long as they have measured the same batch sizes."""
    return tuple(takewhile(lambda one: one.batch_sizes == rounds[0].batch_sizes, rounds))


def _title(part: JournalPart) -> str:
    job, rounds = part.job, part.rounds
    first, last = rounds[0].epoch, rounds[-1].epoch
    return (
        f"{counted(len(job.hosts), 'rank')} on {counted(len(set(job.hosts)), 'host')}, "
        f"global batch {job.global_batch_size}, {job.strategy}; "
        f"{f'epochs {first} to {last}' if first != last else f'epoch {first}'}, "
        f"{counted(len(rounds), 'round')}, "
        f"{counted(sum(entry.changed for entry in rounds), 'change')} of plan"
    )


def _ranks(part: JournalPart, first: RankFigures, last: RankFigures, with_all: bool) -> str:
    hosts = part.job.hosts
    slowest_first = np.argsort(last.samples_per_second, kind="stable")
    shown = sorted(slowest_first[: None if with_all else _MOST_RANKS].tolist())
    rows = [
        (
            str(rank),
            hosts[rank],
            str(first.batch_sizes[rank]),
            str(last.batch_sizes[rank]),
            _number(last.samples_per_second[rank]),
            percent(first.waits[rank]),
            percent(last.waits[rank]),
            percent(last.cpu_load[rank]),
        )
        for rank in shown
    ]
    header = (
        "rank",
        "host",
        "samples, first",
        "now",
        "samples/s",
        "waits, first",
        "now",
        "others' load",
    )
    lines = [table(header, rows, num_left=2)]
    if len(shown) < len(hosts):
        lines.append(f"The {len(shown)} slowest of {len(hosts)} ranks; --all shows all of them.")
    return "\n".join(lines)


def _outcome(part: JournalPart, first: RankFigures, last: RankFigures) -> str:
    before, now = 1000 * first.step_seconds, 1000 * last.step_seconds
    waits, rest = percent(last.parts.waiting), percent(last.parts.rest)
    of_rest = f": {last.parts.text}" if last.parts.text else ""
    if np.array_equal(first.batch_sizes, last.batch_sizes):
        lines = [
            f"A step takes {now:.1f} ms.",
            f"Ranks wait for slower ones {waits} of the time; communication and the rest take "
            f"{rest}{of_rest}.",
        ]
    else:
        lines = [
            f"A step took {before:.1f} ms at first and takes {now:.1f} ms now: "
            f"{before / now:.2f} times as fast.",
            f"Ranks waited for slower ones {percent(first.parts.waiting)} of the time, now "
            f"{waits}; communication and the rest took {percent(first.parts.rest)}, now "
            f"{rest}{of_rest}.",
        ]
    lines += [*_bottleneck(part, last), *_slowest(part, last)]
    if last.step_gain > _LEAST_GAIN:
        lines.append(
            f"Split by these speeds, the work of a step would be done {last.gain:.2f} times as "
            f"fast (bounds and fixed costs left aside). hvd-dbs simulate --replay shows what each "
            f"strategy would make of it."
        )
    return "\n".join(lines)


def _bottleneck(part: JournalPart, last: RankFigures) -> list[str]:
    num_hosts = len(set(part.job.hosts))
    found = Bottleneck.of(last.parts, num_hosts, _links(part))
    if found is None or len(part.job.hosts) == 1:
        return []
    return [f"{found.conclusion[0].upper()}{found.conclusion[1:]}"]


def _links(part: JournalPart) -> list[Link]:
    """Each link as it was seen last."""
    links = {(link.source, link.target): link for entry in part.rounds for link in entry.links}
    return list(links.values())


def _slowest(part: JournalPart, last: RankFigures) -> list[str]:
    hosts, speeds = part.job.hosts, last.samples_per_second
    if np.isfinite(speeds).sum() < 2:
        return []
    slowest, fastest = int(np.nanargmin(speeds)), int(np.nanargmax(speeds))
    if speeds[slowest] >= _EQUALLY_FAST * speeds[fastest]:
        return ["The ranks are equally fast."]
    return [
        f"Slowest at its batch size: rank {slowest} on {hosts[slowest]}, with "
        f"{speeds[slowest] / speeds[fastest]:.2f} of the speed of rank {fastest} on "
        f"{hosts[fastest]}, the fastest."
    ]


def _changes(part: JournalPart, with_all: bool) -> list[str]:
    changes = [
        f"epoch {entry.epoch}, step {entry.step}: {Plan(entry.plan_before)} -> {Plan(entry.plan)}: "
        f"{entry.reason}"
        for entry in part.rounds
        if entry.changed
    ]
    shown = changes if with_all else changes[-_MOST_CHANGES:]
    if not shown:
        return ["", f"No change of plan; the last round: {part.rounds[-1].reason}"]
    which = "" if len(shown) == len(changes) else f", the last {len(shown)}; --all shows all"
    return ["", f"Changes of plan{which}:", *shown]


def _median(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the known numbers along the first axis; NaN where there are none."""
    return _of_known(np.nanmedian, rows, axis=0)


def _of_known(
    function: Callable[..., Any], rows: NDArray[np.float64], axis: int
) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Where nothing is known it says NaN.
        return np.asarray(function(rows, axis=axis))


def _number(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "-"
