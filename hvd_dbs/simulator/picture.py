"""A picture of runs: step time and batch sizes over time. Needs matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.simulation import Run

MOST_LINES = 12
"""Ranks that get a line each; of more ranks, bands are drawn."""

MOST_RUNS = 4
"""Runs side by side in one picture."""


def new_figure(path: Path, columns: int) -> tuple[Any, Any]:
    """An empty figure with two rows of axes, for a file.

    Args:
        path: Where it is to be saved; its suffix says the format (.png, .svg, .pdf).
        columns: Axes side by side.

    Returns:
        The figure, to be saved with `savefig`, and its axes, shape `[2, columns]`.

    Raises:
        ValueError: If the format is unknown.
        RuntimeError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError(
            "a picture needs matplotlib, which is not installed: pip install matplotlib"
        ) from error
    figure = Figure(figsize=(1.5 + 5.5 * columns, 6.5), layout="constrained", dpi=130)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FigureCanvasAgg(figure).get_supported_filetypes():
        raise ValueError(f"picture {path}: unknown format {suffix!r}; expected .png, .svg or .pdf.")
    axes = figure.subplots(
        2, columns, sharex=True, sharey="row", squeeze=False, height_ratios=[3, 2]
    )
    return figure, axes


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draws runs side by side: above the step time with the oracle's, below the batch sizes.

    Args:
        runs: At most `MOST_RUNS` runs of one scenario.
        path: File to write; its suffix says the format (.png, .svg, .pdf).

    Raises:
        ValueError: If there are too many runs, or the format is unknown.
        RuntimeError: If matplotlib is not installed.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise ValueError(
            f"a picture of {len(runs)} runs; expected 1 to {MOST_RUNS}. Choose with --strategy."
        )
    figure, axes = new_figure(path, len(runs))
    for column, run in enumerate(runs):
        _draw_seconds(axes[0, column], run, with_legend=column == 0)
        _draw_batch_sizes(axes[1, column], run, with_legend=column == 0)
    axes[0, 0].set_ylabel("milliseconds a step")
    axes[1, 0].set_ylabel("samples of a rank")
    slowest = [1000 * float(np.percentile(run.clock_seconds, 99)) for run in runs]
    largest = max(int(change.batch_sizes.max()) for run in runs for change in run.changes)
    axes[0, 0].set_ylim(0, 1.3 * max(slowest))  # Room for the legends.
    axes[1, 0].set_ylim(0, 1.35 * largest)
    scenario = runs[0].conditions.scenario
    figure.suptitle(
        f"{scenario.name}: {scenario.size} ranks, global batch {scenario.global_batch_size}"
    )
    figure.savefig(path)


def _draw_seconds(axis: Any, run: Run, with_legend: bool) -> None:
    oracle = run.conditions.oracle_seconds
    steps = np.arange(len(oracle))
    axis.plot(steps, 1000 * run.clock_seconds, color="0.75", linewidth=0.8, label="as measured")
    axis.plot(steps, 1000 * run.true_seconds, color="tab:red", linewidth=1.4, label="without noise")
    axis.plot(steps, 1000 * oracle, color="black", linestyle="--", linewidth=1.2, label="oracle")
    for step in run.conditions.disturbed if len(run.conditions.disturbed) <= 30 else ():
        axis.axvline(step, color="tab:blue", linewidth=0.6, alpha=0.35)
    ratio = oracle.sum() / run.true_seconds.sum()
    axis.set_title(f"{run.strategy}: {100 * ratio:.1f} % of the oracle's throughput", fontsize=10)
    axis.margins(x=0.01)
    if with_legend:
        axis.legend(loc="upper right", fontsize=7, ncols=3, framealpha=0.9)


def _draw_batch_sizes(axis: Any, run: Run, with_legend: bool) -> None:
    steps = [change.step for change in run.changes] + [len(run.true_seconds)]
    plans = np.asarray([change.batch_sizes for change in run.changes], dtype=np.float64)
    plans[plans == 0] = np.nan
    plans = np.concatenate([plans, plans[-1:]])
    axis.set_xlabel("step")
    draw_ranks(axis, steps, plans)
    if with_legend:
        axis.legend(loc="upper right", fontsize=7, ncols=4, framealpha=0.9)


def draw_ranks(
    axis: Any,
    at: Sequence[float] | NDArray[np.float64],
    values: NDArray[np.float64],
    where: str = "post",
) -> None:
    """A line for each rank; of many ranks the least, tenths and most.

    Args:
        axis: Where to draw.
        at: Places of the values, shape `[places]`.
        values: NaN where there is none, shape `[places, ranks]`.
        where: Whether a value holds from its place on ("post") or up to it ("pre").
    """
    if values.shape[1] <= MOST_LINES:
        for rank in range(values.shape[1]):
            axis.step(at, values[:, rank], where=where, linewidth=1.3, label=f"rank {rank}")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN where all are.
        least, low, middle, high, most = np.nanpercentile(values, [0, 10, 50, 90, 100], axis=1)
    axis.fill_between(at, least, most, step=where, color="tab:green", alpha=0.15, label="all ranks")
    axis.fill_between(
        at, low, high, step=where, color="tab:green", alpha=0.35, label="80 % of them"
    )
    axis.step(at, middle, where=where, color="tab:green", linewidth=1.3, label="median")
