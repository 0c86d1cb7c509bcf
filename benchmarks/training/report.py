"""The figures as Markdown, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intervals import mean_and_half
from benchmarks.training.clusters import DBS, PLAIN, Lengths

Job = Mapping[str, Any]


def title(job: Job) -> str:
    """What the job was."""
    speeds = ", ".join(f"{speed:g}" for speed in job["speeds"])
    neighbour = job["neighbour_of"]
    visitor = (
        "" if neighbour is None else f", a neighbour comes and goes on rank {neighbour}'s core"
    )
    return f"{job['cluster']} ({speeds}{visitor}), {job['model']}, B = {job['global_batch_size']}"


def tables(job: Job) -> list[str]:
    """Lines of Markdown: a table of strategies, and what belongs to this cluster alone."""
    figures = job["figures"]
    lines = [
        f"**{title(job)}**",
        "",
        "| strategy | step ms | quartiles | samples/s | of plain | of best static | of ideal "
        "| steps to 95 % | seconds | local batch sizes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in figures["strategies"].items():
        step, start = row["step_seconds"], row.get("start")
        reached = ("", "") if start is None else (start["steps"], f"{start['seconds']:.1f}")
        plan = ", ".join(map(str, row["batch_sizes"] or ()))
        lines.append(
            f"| {name} | {1e3 * step['median']:.1f} | {_quartiles(step, 1e3)} "
            f"| {row['samples_per_second']['median']:.0f} | {_ratio(row.get('of_plain'))} "
            f"| {_ratio(row.get('of_best_static'))} | {_ratio(row['of_ideal'], 3)} "
            f"| {reached[0]} | {reached[1]} | {plan} |"
        )
    ideal = figures["ideal_step_seconds"]
    lines.append(
        f"| *ideal* | {1e3 * ideal['median']:.1f} | {_quartiles(ideal, 1e3)} "
        f"| {figures['ideal_samples_per_second']['median']:.0f} | | | 1 | | | |"
    )
    for name, overhead in figures["overhead"].items():
        lines += [
            "",
            f"Overhead of {name} over {PLAIN}: {overhead['median']:+.1%} (quartiles "
            f"{overhead['low']:+.1%} to {overhead['high']:+.1%}, {overhead['num_rounds']} rounds).",
        ]
    strategies = figures["strategies"]
    return [*lines, *_over_dbs(strategies), *_visits(strategies), *_where(strategies)]


def _over_dbs(strategies: Mapping[str, Any]) -> list[str]:
    found = {name: row["over_dbs"] for name, row in strategies.items() if "over_dbs" in row}
    if not found:
        return []
    lines = ["", f"| strategy | over {DBS}, mean of the rounds' ratios |", "|---|---:|"]
    return lines + [
        f"| {name} | {_percent(over['mean'], over['half'])} |" for name, over in found.items()
    ]


def over_jobs(jobs: Sequence[Job]) -> list[str]:
    """Lines of Markdown: how steps compare to those of dbs over all jobs that are the same.

    Rounds of a job share its models; jobs do not.
    """
    means: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        for name, row in job["figures"]["strategies"].items():
            if "over_dbs" in row:
                means.setdefault((title(job), name), []).append(row["over_dbs"]["mean"])
    lines = []
    for (job_title, name), found in means.items():
        if len(found) > 1:
            mean, half = map(float, mean_and_half(found))
            lines.append(
                f"{job_title}, {len(found)} jobs: {name} over {DBS} {_percent(mean, half)}"
            )
    return lines


def _percent(mean: float, half: float) -> str:
    return f"{100 * mean:+.1f} ±{100 * half:.1f} %"


def _visits(strategies: Mapping[str, Any]) -> list[str]:
    if not any("neighbour" in row for row in strategies.values()):
        return []
    lines = [
        "",
        "| strategy | neighbour there: of ideal at last | steps to 95 % of that ideal | "
        "gone: of ideal at last | steps to 95 % of that ideal |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in strategies.items():
        cells = []
        for key in ("comes", "goes"):
            visit = row["neighbour"][key]
            reached = visit["to_ideal"]
            cells += [
                f"{visit['settled_of_ideal']:.3f}",
                "never" if reached is None else str(reached["steps"]),
            ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _where(strategies: Mapping[str, Any]) -> list[str]:
    rows = {name: row["where"] for name, row in strategies.items() if "where" in row}
    if not rows:
        return []
    lines = [
        "",
        "Where the time of a usual step goes, ms, with the plan used most:",
        "",
        "| strategy | ideal | plan by the curves | busiest rank | last in each step | whole step "
        "| plan |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    keys = ("ideal", "plan", "busy", "slowest_busy", "step")
    for name, row in rows.items():
        cells = [f"{1e3 * row[key]:.1f}" for key in keys]
        plan = ", ".join(map(str, row["batch_sizes"]))
        lines.append(f"| {name} | {' | '.join(cells)} | {plan} |")
    return lines


def _quartiles(summary: Mapping[str, float], factor: float) -> str:
    return f"{factor * summary['low']:.1f} - {factor * summary['high']:.1f}"


def _ratio(summary: Mapping[str, float] | None, digits: int = 2) -> str:
    return "" if summary is None else f"{summary['median']:.{digits}f}"


def draw(jobs: Sequence[Job], path: Path) -> None:
    """Draws step time over steps, a panel for each job, the ideal as a dashed line.

    A panel shows each strategy's start and then its rounds; with a neighbour, the median over
    rounds of each step of a cycle.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError("a picture needs matplotlib: pip install matplotlib") from error
    columns = 1 if len(jobs) == 1 else 2
    rows = -(-len(jobs) // columns)
    figure = Figure(figsize=(7.5 * columns, 4 * rows), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, job in zip(panels, jobs, strict=False):
        _draw_job(axes, job)
    for axes in panels[len(jobs) :]:
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_figure(path, dpi=110)


def _draw_job(axes: Any, job: Job) -> None:
    ideal = 1e3 * job["figures"]["ideal_step_seconds"]["median"]
    longest = ideal
    for name, rounds in job["rounds"].items():
        if job["neighbour_of"] is not None:
            steps = np.median(rounds, axis=0)
        else:
            steps = np.concatenate([job["starts"].get(name, []), *(r[1:] for r in rounds)])
        dashed = name == PLAIN
        milliseconds = 1e3 * steps
        axes.plot(milliseconds, label=name, linewidth=1, linestyle=":" if dashed else "-")
        longest = max(longest, float(np.percentile(milliseconds, 97)))
    if job["neighbour_of"] is not None:
        cycle = Lengths(**job["lengths"]).cycle
        axes.axvspan(cycle.begin, cycle.end, color="0.92", label="neighbour there")
    else:
        starts = [len(steps) for steps in job["starts"].values()]
        if starts:
            axes.axvline(starts[0], color="0.7", linewidth=0.8)
    axes.axhline(ideal, color="black", linestyle="--", linewidth=1, label="ideal")
    axes.set_ylim(0, 1.15 * longest)
    axes.set_title(title(job), fontsize=9)
    axes.set_xlabel("step")
    axes.set_ylabel("milliseconds a step")
    axes.legend(fontsize=7, ncols=3)
