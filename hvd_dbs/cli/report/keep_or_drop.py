"""Whether a job is faster without its slowest ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.report.best_split import lines_of
from hvd_dbs.cli.report.job_model import JobModel
from hvd_dbs.cli.report.what_if import Answer, if_split_best, slowest_first
from hvd_dbs.job.step_parts import percent


@dataclass(frozen=True)
class Advice:
    """What the best splits with and without the slowest ranks take.

    Attributes:
        ranks: The slowest rank; those to be left out, where more than one is.
        least_seconds: The shortest step of the fastest of these: with one sample.
        with_them: The best split of all ranks.
        without: The best split of the others.
    """

    ranks: tuple[int, ...]
    least_seconds: float
    with_them: Answer
    without: Answer

    @property
    def drops(self) -> bool:
        """Whether the job is faster without these ranks."""
        return self.without.step_seconds < self.with_them.step_seconds

    @property
    def text(self) -> str:
        """One or two sentences."""
        one = len(self.ranks) == 1
        who = f"rank {self.ranks[0]}" if one else f"ranks {', '.join(map(str, self.ranks))}"
        time = (
            f"{1000 * self.without.step_seconds:.1f} ms at best instead of "
            f"{1000 * self.with_them.step_seconds:.1f} ms with {'it' if one else 'them'}"
        )
        cost = f"{_cost(self.without):.3g} device-seconds instead of {_cost(self.with_them):.3g}"
        if not self.drops:
            saved = 1 - _cost(self.without) / _cost(self.with_them)
            cheaper = f", {percent(saved)} less device time" if saved > 0 else ""
            return f"Keep all ranks: without {who}, a step would take {time}, and {cost}{cheaper}."
        return (
            f"Drop {who}: even with one sample {'its' if one else 'their'} step takes "
            f"{1000 * self.least_seconds:.1f} ms. Without {'it' if one else 'them'}, a step would "
            f"take {time}, and {cost}."
        )


def keep_or_drop(model: JobModel) -> Advice | None:
    """Advice on the slowest rank, or on as many of the slowest as the job is faster without.

    What comes and goes is no reason to leave a rank out. None where there is one rank.
    """
    if model.size == 1:
        return None
    slowest, everybody = slowest_first(model), if_split_best(model, calm=True)
    number, without = 1, _without(model, slowest[:1])
    best = min(everybody.step_seconds, without.step_seconds)
    while without.step_seconds <= best < everybody.step_seconds and number < model.size - 1:
        more = _without(model, slowest[: number + 1])
        if more.step_seconds >= best:
            break
        number, without, best = number + 1, more, more.step_seconds
    chosen = slowest[:number]
    lines = lines_of(model, None, model.calm)
    least = float(lines.seconds(np.ones(model.size))[chosen].min())
    return Advice(tuple(sorted(chosen.tolist())), least, everybody, without)


def _without(model: JobModel, left_out: NDArray[np.intp]) -> Answer:
    return if_split_best(model, np.setdiff1d(np.arange(model.size), left_out), calm=True)


def _cost(answer: Answer) -> float:
    """Seconds of all devices together in a step."""
    return answer.step_seconds * answer.num_ranks
