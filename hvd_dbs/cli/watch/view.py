"""What a terminal shows of a job that is running."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hvd_dbs.balancing import Plan
from hvd_dbs.cli.report.text import title_of
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.cli.watch.follower import MOST_ROUNDS
from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.job.scores import SLOW_BELOW, scores_of
from hvd_dbs.job.step_parts import percent

_BAR = 24
_CURVE = 60
_MOST_CHANGES = 3
_LEVELS = " ▁▂▃▄▅▆▇█"
_PARTS = (("▒", "."), ("█", "#"), ("░", "-"), (" ", " "))
"""A rank's time: waiting for data, work, waiting for slower ranks, the rest; and in ASCII."""


def view(part: JournalPart, num_ranks: int, unicode: bool = True) -> RenderableType:
    """The state of a job after its newest round.

    Args:
        part: The newest rounds.
        num_ranks: Ranks that there is room for, the slowest first.
        unicode: Whether the terminal has more than ASCII.
    """
    try:
        verdict = Verdict.of(part).text
    except ValueError as error:
        verdict = f"No verdict: {error}"
    newest = part.rounds[-1]
    what, _, rest = verdict.partition("\n")
    lines: list[RenderableType] = [
        Text(title_of(part, has_newest=len(part.rounds) == MOST_ROUNDS), style="dim"),
        Text(what, style="bold"),
        Text(rest),
        Text(""),
        Text(f"step {_milliseconds(newest.step_seconds)}  {_curve(part.rounds, unicode)}"),
        Text(""),
        _ranks(part, num_ranks, unicode),
    ]
    data, work, wait, _ = (pair[0 if unicode else 1] for pair in _PARTS)
    lines.append(Text(f"{data} waits for data  {work} works  {wait} waits for ranks", style="dim"))
    changes = [entry for entry in part.rounds if entry.changed][-_MOST_CHANGES:]
    lines += [Text(""), *(Text(_change(entry)) for entry in changes)]
    return Group(*lines)


def round_line(entry: RoundEntry) -> str:
    """A round in one line, for what is no terminal."""
    step = f"step {_milliseconds(entry.step_seconds)}"
    plan = f"{Plan(entry.batch_sizes)} -> {Plan(entry.plan)}: " if entry.changed else ""
    return f"epoch {entry.epoch}, step {entry.step}: {step}; {plan}{entry.reason}"


def _change(entry: RoundEntry) -> str:
    return (
        f"epoch {entry.epoch}, step {entry.step}: {Plan(entry.plan_before)} -> {Plan(entry.plan)}: "
        f"{entry.reason}"
    )


def _ranks(part: JournalPart, num_ranks: int, unicode: bool) -> Table:
    hosts, newest = part.job.hosts, part.rounds[-1]
    scores = scores_of(len(hosts), [(one.batch_sizes, one.busy_seconds) for one in part.rounds])
    others, best = scores.against_others, scores.against_own_best
    order = np.argsort(np.where(np.isfinite(others), others, np.inf), kind="stable")
    left_out = len(hosts) - num_ranks
    title = f"the {num_ranks} slowest of {len(hosts)} ranks" if left_out > 0 else None
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for name in ("rank", "host", "samples", "a step", "of others", "of its best", "others' load"):
        table.add_column(name, justify="left" if name in ("rank", "host", "a step") else "right")
    for rank in sorted(order[:num_ranks].tolist()):
        is_slow = others[rank] < SLOW_BELOW or best[rank] < SLOW_BELOW
        table.add_row(
            str(rank),
            hosts[rank],
            str(newest.batch_sizes[rank]),
            _bar(newest, rank, unicode),
            _score(others[rank]),
            _score(best[rank]),
            percent(newest.cpu_load[rank]),
            style="yellow" if is_slow else None,
        )
    return table


def _bar(entry: RoundEntry, rank: int, unicode: bool) -> str:
    busy, step = entry.busy_seconds[rank], entry.step_seconds
    if not (busy > 0 and step > 0):
        return "-"
    longest = max(one for one in entry.busy_seconds if one > 0)
    waited = entry.input_seconds[rank] if entry.input_seconds else 0.0
    waited = min(waited, busy) if waited > 0 else 0.0
    whole = max(step, longest)
    ends = [round(_BAR * part / whole) for part in (waited, busy, longest, whole)]
    marks = [pair[0 if unicode else 1] for pair in _PARTS]
    starts = [0, *ends[:-1]]
    return "".join(
        mark * (end - start) for mark, start, end in zip(marks, starts, ends, strict=True)
    )


def _curve(rounds: Sequence[RoundEntry], unicode: bool) -> str:
    """Step times of the newest rounds."""
    seconds = [entry.step_seconds for entry in rounds[-_CURVE:] if entry.step_seconds > 0]
    if not seconds or not unicode:
        return ""
    most = max(seconds)
    return "".join(_LEVELS[math.ceil(8 * one / most)] for one in seconds)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if math.isfinite(seconds) else "-"


def _score(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"
