"""Logs each change of plan and what holds the job back, and writes the journal."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from hvd_dbs.balancing import Controller
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.links import links_of
from hvd_dbs.job.bottleneck_log import BottleneckLog
from hvd_dbs.job.decision import Agreed
from hvd_dbs.job.journal import Journal
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry

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
        self._collective, self._controller, self._journal = collective, controller, journal
        self._job: JobEntry | None = None
        self._warnings: set[str] = set()
        self._bottleneck = BottleneckLog()

    @property
    def has_journal(self) -> bool:
        """Whether every round is kept, also of a strategy that decides nothing."""
        return self._journal is not None

    def change_ranks(self, hosts: Sequence[str]) -> None:
        """The job has other ranks, on these hosts; who was rank 0 before may be so again."""
        self._hosts, self._job = hosts, None
        self._bottleneck.restart()

    def begin(self) -> None:
        """Rounds of these ranks with this global batch size follow."""
        if self._journal is None or self._collective.rank != 0:
            return
        controller = self._controller
        job = JobEntry(tuple(self._hosts), controller.strategy.name, controller.global_batch_size)
        if job != self._job:
            self._job = job
            self._journal.write(job)

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
        received = agreed.received
        if received is None:
            return
        links = links_of(received.links, self._hosts) if self._hosts else ()
        self._bottleneck.note(received, self._hosts, links)
        if self._journal is None:
            return
        self.begin()
        self._journal.write(
            RoundEntry(
                epoch=epoch,
                step=step,
                batch_sizes=tuple(received.batch_sizes.astype(int).tolist()),
                busy_seconds=tuple(received.busy_seconds.tolist()),
                cpu_load=tuple(received.cpu_load.tolist()),
                step_seconds=received.step_seconds,
                plan_before=before.batch_sizes,
                plan=decision.plan.batch_sizes,
                reason=decision.reason,
                predicted_seconds=decision.predicted_seconds,
                links=links,
                first_bucket_seconds=tuple(received.first_bucket_seconds.tolist()),
                overlap_seconds=received.overlap_seconds,
                last_bucket_seconds=received.last_bucket_seconds,
                negotiation_seconds=received.negotiation_seconds,
                num_steps=agreed.num_steps,
                input_seconds=tuple(received.input_seconds.tolist()),
                throttled_share=tuple(received.throttled_share.tolist()),
                page_faults=tuple(received.page_faults.tolist()),
            )
        )

    def flush(self) -> None:
        """A training is over: what was logged is to be found now."""
        if self._journal is not None:
            self._journal.flush()
