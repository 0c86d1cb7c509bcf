"""Logs each change of plan and what holds the job back, and writes the journal."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from hvd_dbs.balancing import Controller
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.job.decision import Agreed
from hvd_dbs.job.journal import Journal
from hvd_dbs.job.journal_entries import JobEntry
from hvd_dbs.job.observation import Observation
from hvd_dbs.job.observers.observer import Observer

_LOGGER = logging.getLogger(__name__)


def open_journal(collective: Collective, path: str | os.PathLike[str] | None) -> Journal | None:
    """The journal at a path, which rank 0 must be able to write to. Collective.

    Args:
        collective: The job.
        path: The file; None, on all ranks: there is no journal.

    Raises:
        ValueError: On all ranks, if rank 0 cannot write to it, or it holds something else.
        TypeError: On all ranks, if it is no path on one of them.
    """
    if path is None:
        return None
    with agreement.raising_together(collective, (TypeError, ValueError)):
        journal = Journal(path)
        if collective.rank == 0:
            journal.check()
    return journal


class DecisionLog:
    """Rank 0 tells what it has decided; the others are silent.

    Args:
        collective: The job.
        controller: Knows strategy and global batch size.
        hosts: Where each rank runs, by rank.
        journal: Where every round is written; None: nowhere.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        hosts: Sequence[str] = (),
        journal: Journal | None = None,
    ) -> None:
        self._hosts = hosts
        self._collective, self._controller = collective, controller
        self._observation = Observation(journal)
        self._warnings: set[str] = set()

    def add(self, observer: Observer) -> None:
        """Lets an observer follow the job, where this is rank 0."""
        self._observation.add(observer)

    def change_ranks(self, hosts: Sequence[str]) -> None:
        """The job has other ranks, on these hosts; who was rank 0 before may be so again."""
        self._hosts = hosts
        self._observation.change_ranks()

    def begin(self) -> None:
        """Rounds of these ranks with this global batch size follow."""
        if self._collective.rank == 0:
            self._observation.begin(self._job)

    def write(self, agreed: Agreed, epoch: int, step: int) -> None:
        """What a round has come to after so many steps of an epoch."""
        if self._collective.rank != 0:
            return
        before, decision = agreed.before, agreed.decision
        where = f"epoch {epoch}, step {step}"
        if decision.changed:
            _LOGGER.info("%s: %s -> %s: %s", where, before, decision.plan, decision.reason)
        elif decision.warning and decision.reason not in self._warnings:
            self._warnings.add(decision.reason)
            _LOGGER.warning("%s: %s: %s", where, before, decision.reason)
        self._observation.note(self._job, self._controller.bounds, agreed, (epoch, step))

    def take_seconds(self) -> float:
        """Processor time of journal and observers since it was last asked for."""
        return self._observation.take_seconds()

    def end(self) -> None:
        """A training is over: what was logged is to be found now."""
        if self._collective.rank == 0:
            self._observation.end()

    @property
    def _job(self) -> JobEntry:
        controller = self._controller
        return JobEntry(tuple(self._hosts), controller.strategy.name, controller.global_batch_size)
