"""What a journal says, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hvd_dbs.job.journal import JournalPart
from hvd_dbs.simulator.picture import draw_ranks, new_figure


def draw(part: JournalPart, path: Path) -> None:
    """Draws steps and the ranks' own work in them, and below the batch sizes, over time.

    Args:
        part: At least one round.
        path: File to write; its suffix says the format (.png, .svg, .pdf).

    Raises:
        ValueError: If the format is unknown.
        RuntimeError: If matplotlib is not installed.
    """
    figure, axes = new_figure(path, 1)
    above, below = axes[:, 0]
    rounds = (part.rounds[0], *part.rounds)  # Once more where the first one begins.
    seconds = np.array([part.job.time, *(entry.time for entry in part.rounds)]) - part.job.time
    # What a round has measured was before it; what it decides holds after it.
    busy_seconds = np.array([entry.busy_seconds for entry in rounds])
    draw_ranks(above, seconds, 1000 * busy_seconds, where="pre")
    step_seconds = np.array([entry.step_seconds for entry in rounds])
    above.step(
        seconds, 1000 * step_seconds, where="pre", color="black", linestyle="--", label="whole step"
    )
    above.set_ylabel("milliseconds a step: own work, whole")
    plans = np.array([rounds[0].plan_before, *(entry.plan for entry in part.rounds)], float)
    draw_ranks(below, seconds, plans)
    below.set_ylabel("samples of a rank")
    below.set_xlabel("seconds of training")
    for axis in (above, below):
        axis.set_ylim(0, 1.25 * axis.get_ylim()[1])  # Room for the legends.
        axis.legend(loc="upper right", fontsize=7, ncols=5, framealpha=0.9)
    job = part.job
    figure.suptitle(f"{len(job.hosts)} ranks, global batch {job.global_batch_size}, {job.strategy}")
    figure.savefig(path)
