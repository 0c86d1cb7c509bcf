"""The journal of a job: what it had, and what other strategies would have made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.progress import progress_bar
from hvd_dbs.cli.simulate.request import Request
from hvd_dbs.cli.tables import table
from hvd_dbs.job.journal import JournalPart, read_journal
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.figures import figures_of
from hvd_dbs.simulator.job_rounds import JobRounds
from hvd_dbs.simulator.replay import Replay, replay_of
from hvd_dbs.simulator.result_file import run_data
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.simulation import Run, preset_names, simulate

_NOTICEABLE = 1.05
"""A batch size that is further from what was measured is said to be."""

_MOST_ROUNDS = 2000
"""The newest rounds that are replayed: a journal of days has half a million, which take hours."""

_MOST_SHOWN = 12
"""Local batch sizes that are shown."""


def run(request: Request, journal: Path) -> str:
    """Runs the job of a journal again, with each strategy; returns the table."""
    parts, num_damaged = read_journal(journal)
    part = parts[-1]
    rounds = job_rounds(replace(part, rounds=part.rounds[-_MOST_ROUNDS:]), journal.name)
    replay = replay_of(rounds, seed=request.seed or 0)
    names = request.names or preset_names()
    conditions = Conditions.of(replay.scenario)
    with progress_bar(journal.name, len(names) * replay.scenario.steps) as progress:
        runs = [
            simulate(conditions, request.strategy(name, conditions), progress) for name in names
        ]
    pairs = [(one, figures_of(one)) for one in runs]
    request.save("runs", [run_data(*pair, with_steps=True) for pair in pairs])
    lines = [*_head(replay, parts, num_damaged), "", _table(replay, names, runs), ""]
    return "\n".join([*lines, *_notes(replay)])


def job_rounds(part: JournalPart, name: str) -> JobRounds:
    """The rounds of a part of a journal as arrays.

    Args:
        part: The part.
        name: What tables call it.

    Raises:
        ValueError: If the rounds do not tell how many steps they are of.
    """
    entries, size = part.rounds, len(part.job.hosts)
    lengths = np.array([entry.num_steps for entry in entries], dtype=np.int64)
    if not lengths.all():
        number = int(np.flatnonzero(lengths == 0)[0]) + 1
        raise ValueError(
            f"{name}: round {number} does not say how many steps it is of; expected num_steps in "
            f"each round, which older journals lack. Let the job write its journal anew."
        )

    def rows(field: str) -> NDArray[np.float64]:
        unknown = (np.nan,) * size
        return np.array([getattr(entry, field, ()) or unknown for entry in entries], dtype=float)

    def column(field: str) -> NDArray[np.float64]:
        return np.array([_number(entry, field) for entry in entries])

    return JobRounds(
        name=name,
        strategy=part.job.strategy,
        global_batch_size=part.job.global_batch_size,
        lengths=lengths,
        steps_per_epoch=max(1, *(entry.step for entry in entries)),
        batch_sizes=rows("batch_sizes"),
        busy_seconds=rows("busy_seconds"),
        quartile_seconds=rows("quartile_seconds"),
        cpu_load=rows("cpu_load"),
        step_seconds=column("step_seconds"),
        first_bucket_seconds=rows("first_bucket_seconds"),
        overlap_seconds=column("overlap_seconds"),
        last_bucket_seconds=column("last_bucket_seconds"),
        steps_ahead=column("steps_ahead"),
    )


def mean_seconds(run: Run, start: int = 0) -> float:
    """Seconds of a step from this one on, those that a job does not measure left out."""
    steps = np.arange(start, len(run.clock_seconds))
    return float(run.clock_seconds[measured(run.conditions.scenario, steps)].mean())


def measured(scenario: Scenario, steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the steps that do not begin an epoch; all, if all do."""
    kept = steps[[scenario.is_measured(step) for step in steps.tolist()]]
    return kept if len(kept) else steps


def _number(entry: RoundEntry, field: str) -> float:
    value = getattr(entry, field, np.nan)  # Older journals know less.
    return float(value)


def _head(replay: Replay, parts: Sequence[JournalPart], num_damaged: int) -> list[str]:
    rounds, scenario, num_parts = replay.rounds, replay.scenario, len(parts)
    newest = f"the newest {_MOST_ROUNDS} of " if len(parts[-1].rounds) > _MOST_ROUNDS else ""
    seconds, lengths = rounds.step_seconds, rounds.lengths.astype(float)
    known = np.isfinite(seconds)
    had = "The journal does not say what a step took."
    if known.any():
        late = known & (rounds.ends > scenario.steps // 2)
        whole, second = (
            1000 * np.average(seconds[which], weights=lengths[which])
            for which in (known, late if late.any() else known)
        )
        had = f"The job had {whole:.1f} ms a step, {second:.1f} ms in its second half."
    lines = [
        f"{rounds.name}, part {num_parts} of {num_parts}: {scenario.size} ranks, global batch "
        f"{rounds.global_batch_size}, {rounds.strategy}; {newest}{len(parts[-1].rounds)} rounds, "
        f"{scenario.steps} steps",
        had,
    ]
    if num_damaged:
        damaged = "line of the journal was" if num_damaged == 1 else "lines of the journal were"
        lines.append(f"{num_damaged} damaged {damaged} left out.")
    return lines


def _table(replay: Replay, names: Sequence[str], runs: Sequence[Run]) -> str:
    half = replay.scenario.steps // 2
    rows = []
    for name, one in zip(names, runs, strict=True):
        last = one.changes[-1].batch_sizes.tolist()
        sizes = ", ".join(map(str, last[:_MOST_SHOWN]))
        sizes += ", ..." if len(last) > _MOST_SHOWN else ""
        rows.append(
            (
                name + (" (the job's)" if name == replay.rounds.strategy else ""),
                f"{1000 * mean_seconds(one):.1f}",
                f"{1000 * mean_seconds(one, half):.1f}",
                f"{figures_of(one).second_half_over_oracle:.3f}",
                sizes,
                _beyond(replay, one),
            )
        )
    header = (
        "strategy",
        "step ms",
        "second half",
        "of ideal",
        "local batch sizes at last",
        "beyond measured",
    )
    return table(header, rows)


def _beyond(replay: Replay, run: Run) -> str:
    """How far the plans of a run's second half are from what the job measured."""
    half = replay.scenario.steps // 2
    ends = [change.step for change in run.changes[1:]] + [replay.scenario.steps]
    late = [change for change, end in zip(run.changes, ends, strict=True) if end > half]
    rank, ratio = max(
        (replay.beyond(change.batch_sizes) for change in late), key=lambda found: found[1]
    )
    return f"{ratio:.2f} times, rank {rank}" if ratio > _NOTICEABLE else "no"


def _notes(replay: Replay) -> list[str]:
    scenario, slow = replay.scenario, np.max(replay.paces.factors, axis=0)
    overlap, last = scenario.communication.seconds(scenario.size)
    hidden = f", {1000 * overlap:.1f} ms that the backward pass can hide" if overlap else ""
    periods = [
        f"rank {rank}: up to {slow[rank]:.2f} times" for rank in np.argsort(-slow)[:4].tolist()
    ]
    return [
        f"Found in the journal: noise of {100 * scenario.noise.jitter:.1f} % a step; communication "
        f"and the rest {1000 * last:.1f} ms{hidden}.",
        f"Paces by round, over each rank's curve: {'; '.join(periods)}.",
        '"beyond measured": how far plans of the second half are from the batch sizes that a rank '
        "had;\nthere its curve is a straight line, and where it had a single one, an assumed line.",
    ]
