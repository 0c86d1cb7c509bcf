"""Two runs beside each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_dbs.cli.report.rank_figures import median_of_known, median_parts
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.cli.tables import table
from hvd_dbs.job.step_parts import percent

_RESAMPLES = 500
_RANGE = (5, 95)
_MOST_RANKS = 16


@dataclass(frozen=True)
class Side:
    """One of two runs.

    Attributes:
        name: What the comparison calls it.
        verdict: On its newest steps.
    """

    name: str
    verdict: Verdict


def comparison(first: Side, second: Side) -> str:
    """Which is faster and by how much, figures of both, what holds each back."""
    rows = list(zip(*(_figures(side) for side in (first, second)), strict=True))
    lines = [
        _conclusion(first, second),
        "",
        table(
            ("", first.name, second.name),
            [(name, one, other) for (name, one), (_, other) in rows],
        ),
        "",
    ]
    lines += _ranks(first, second)
    lines += [f"{side.name}: {side.verdict.what}" for side in (first, second)]
    return "\n".join(lines)


def _conclusion(first: Side, second: Side) -> str:
    before, now = first.verdict.model, second.verdict.model
    random, ratios = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        speeds = []
        for model in (before, now):
            chosen = random.integers(0, len(model.num_steps), len(model.num_steps))
            seconds = np.average(model.step_seconds[chosen], weights=model.num_steps[chosen])
            speeds.append(model.global_batch_size / seconds)
        ratios.append(speeds[1] / speeds[0])
    least, most = np.percentile(ratios, _RANGE)
    ratio = (now.global_batch_size / now.mean_step) / (before.global_batch_size / before.mean_step)
    few = before.has_few_rounds or now.has_few_rounds
    unclear = " That may be noise." if few or least <= 1 <= most else ""
    return (
        f"{second.name} processes {ratio:.2f} times as many samples a second as {first.name} "
        f"({least:.2f} to {most:.2f}).{unclear}"
    )


def _figures(side: Side) -> list[tuple[str, str]]:
    model = side.verdict.model
    parts = median_parts(model.parts)
    efficiency = side.verdict.balanced.step_seconds / model.mean_step
    return [
        ("ranks", str(model.size)),
        ("hosts", str(len(set(model.hosts)))),
        ("strategy", model.strategy),
        ("global batch", str(model.global_batch_size)),
        ("steps looked at", f"{model.num_steps.sum():.0f}" if model.knows_steps else "-"),
        ("step ms", f"{1000 * model.mean_step:.1f}"),
        ("samples/s", f"{model.global_batch_size / model.mean_step:.0f}"),
        ("waiting for slower ranks", percent(parts.waiting)),
        ("communication and the rest", percent(parts.rest)),
        ("of the best split's speed", percent(min(efficiency, 1.0))),
    ]


def _ranks(first: Side, second: Side) -> list[str]:
    before, now = first.verdict.model, second.verdict.model
    if before.size != now.size or before.size > _MOST_RANKS:
        return []
    speeds = [median_of_known(model.batch_sizes / model.seconds) for model in (before, now)]
    rows = [
        (
            f"rank {rank}",
            before.hosts[rank],
            now.hosts[rank],
            f"{speeds[0][rank]:.0f}",
            f"{speeds[1][rank]:.0f}",
            f"{speeds[1][rank] / speeds[0][rank]:.2f}",
        )
        for rank in range(before.size)
    ]
    header = ("", "host", "host then", "samples/s", "then", "times")
    return [table(header, rows, num_left=3), ""]
