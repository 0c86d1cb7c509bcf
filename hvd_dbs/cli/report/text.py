"""What a journal says, as text."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Plan
from hvd_dbs.cli.report.job_model import MOST_ROUNDS
from hvd_dbs.cli.report.rank_figures import FEW_ROUNDS, RankFigures, alike
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.cli.tables import table
from hvd_dbs.cli.wording import counted
from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.scores import scores_of
from hvd_dbs.job.step_parts import percent

_EQUALLY_FAST = 0.95
_MOST_RANKS = 16
_MOST_CHANGES = 10


def text_of(part: JournalPart, verdict: Verdict | str, with_all: bool = False) -> str:
    """Title, verdict, ranks, what balancing has come to, and changes of plan.

    Args:
        part: At least one round.
        verdict: On it, or why there is none.
        with_all: Whether to show all ranks and changes, however many there are.
    """
    known = tuple(entry for entry in part.rounds if np.isfinite(entry.step_seconds))
    lines = [title_of(part)]
    if known:
        said = verdict.text if isinstance(verdict, Verdict) else f"No verdict: {verdict}"
        lines += ["", said]
        first = RankFigures.of(alike(known[:FEW_ROUNDS]))
        last = RankFigures.of(alike(known[: -FEW_ROUNDS - 1 : -1]))
        lines += ["", _ranks(part, first, last, with_all), "", _outcome(part, first, last)]
    else:
        lines += ["", "No round has measured a step yet."]
    return "\n".join([*lines, *_changes(part, with_all)])


def title_of(part: JournalPart, has_newest: bool = False) -> str:
    """The job in one line; `has_newest`: older rounds may be left out."""
    job, rounds = part.job, part.rounds
    first, last = rounds[0].epoch, rounds[-1].epoch
    return (
        f"{counted(len(job.hosts), 'rank')} on {counted(len(set(job.hosts)), 'host')}, "
        f"global batch {job.global_batch_size}, {job.strategy}; "
        f"{f'epochs {first} to {last}' if first != last else f'epoch {first}'}, "
        f"{'the newest ' if has_newest else ''}{counted(len(rounds), 'round')}, "
        f"{counted(sum(entry.changed for entry in rounds), 'change')} of plan"
    )


def _ranks(part: JournalPart, first: RankFigures, last: RankFigures, with_all: bool) -> str:
    hosts = part.job.hosts
    slowest_first = np.argsort(last.samples_per_second, kind="stable")
    newest = part.rounds[-MOST_ROUNDS:]
    scores = scores_of(len(hosts), [(one.batch_sizes, one.busy_seconds) for one in newest])
    others, best = scores.against_others, scores.against_own_best
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
            _score(others[rank]),
            _score(best[rank]),
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
        "of others",
        "of its best",
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
    lines += _slowest(part, last)
    return "\n".join(lines)


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


def _number(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "-"


def _score(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "-"
