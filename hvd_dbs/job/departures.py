"""Which ranks are to leave an elastic job, because it is faster without them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_dbs.balancing import Controller
from hvd_dbs.job.dispensable_ranks import DispensableRanks, DropDecision
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.job.observers.observer import Observer
from hvd_dbs.job.scores import RankScores


class Departures(Observer):
    """Follows the job on rank 0, which lets ranks leave at a commit.

    Args:
        controller: Knows the bounds of plans.
        min_ranks: How many ranks have to be left, at least.

    Attributes:
        due: The ranks that are to leave by what rank 0 knows now; None: nobody, or this is another
            rank.
        hosts: Of the ranks, by rank, as the launcher calls them.
    """

    def __init__(self, controller: Controller, min_ranks: int) -> None:
        self._controller, self._min_ranks = controller, min_ranks
        self.change_ranks(())

    def change_ranks(self, hosts: Sequence[str]) -> None:
        """The job has other ranks, on these hosts."""
        self.hosts = tuple(hosts)
        self.due: DispensableRanks | None = None
        self._decision = DropDecision(self.hosts, self._min_ranks)

    def on_round(self, entry: RoundEntry, scores: RankScores) -> None:
        """Decides anew."""
        sizes, seconds = np.array(entry.batch_sizes, float), np.array(entry.busy_seconds)
        bounds = self._controller.bounds
        if len(sizes) == len(self.hosts) == bounds.size:
            self.due = self._decision.after(sizes, seconds, bounds, entry.num_steps)
