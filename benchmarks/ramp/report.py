"""The table and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ramp.figures import AFTER, BEFORE, around
from benchmarks.ramp.training import Setting


def table(setting: Setting, job: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    phases = "-".join(map(str, setting.ranks))
    seeds = len(next(iter(job["runs"].values())))
    changes = [f"{a} to {b} ranks" for a, b in zip(setting.ranks, setting.ranks[1:], strict=False)]
    heads = [f"{change}: {what} loss" for change in changes for what in ("worst", "mean")]
    lines = [
        f"**Ranks {phases}, {setting.local_batch_size} samples each, learning rate "
        f"{setting.learning_rate:g} a rank, {setting.epochs} epochs a phase, {seeds} seeds**",
        "",
        f"| run | test accuracy | test loss | {' | '.join(heads)} |",
        f"|---|---:|---:|{'---:|' * len(heads)}",
    ]
    for name, row in job["figures"].items():
        cells = [_shown(row["test_accuracy"], 100, 1), _shown(row["test_loss"], 1, 3)]
        for change in row["changes"]:
            cells += [_shown(change["worst"], 1, 2), _shown(change["mean"], 1, 2)]
        cells += [""] * (2 + len(heads) - len(cells))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for other, rows in job["compared"].items():
        lines += ["", f"Ramp less {other}, seed by seed (median, range, seeds above and below 0):"]
        lines += ["", *map(_comparison, rows.items())]
    return lines


def _comparison(entry: tuple[str, Mapping[str, Any]]) -> str:
    name, row = entry
    return (
        f"- {name}: {row['median']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}; "
        f"{row['higher']} above, {row['lower']} below)"
    )


def _shown(row: Mapping[str, float], factor: float, digits: int) -> str:
    low, high = (f"{factor * row[key]:.{digits}f}" for key in ("low", "high"))
    return f"{factor * row['median']:.{digits}f} ({low} - {high})"


def draw(jobs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A row for each learning rate: the loss around each change, medians and ranges over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_changes = len(jobs[0]["runs"]["ramp"][0]["changes"])
    figure = Figure(figsize=(5 * num_changes, 3.6 * len(jobs)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(len(jobs), num_changes, squeeze=False)
    steps = np.arange(-BEFORE, AFTER)
    for row, job in zip(panels, jobs, strict=True):
        setting = job["setting"]
        for change, axes in enumerate(row):
            for name, runs in job["runs"].items():
                if not runs[0]["changes"]:
                    continue
                lines = np.array([around(run, change) for run in runs])
                (line,) = axes.plot(steps, np.median(lines, axis=0), label=name, linewidth=1.2)
                axes.fill_between(
                    steps, lines.min(axis=0), lines.max(axis=0), color=line.get_color(), alpha=0.15
                )
            axes.axvline(-0.5, color="0.6", linewidth=0.8)
            old, new = setting["ranks"][change : change + 2]
            axes.set_title(
                f"{old} to {new} ranks, learning rate {setting['learning_rate']:g} a rank",
                fontsize=9,
            )
            axes.set_xlabel("steps after the change")
            axes.set_ylabel("loss over the loss before")
            axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_figure(path, dpi=110)
