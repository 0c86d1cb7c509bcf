"""Logs what holds a job back, once and when it changes."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.links import Link
from hvd_dbs.job.bottleneck import Bottleneck
from hvd_dbs.job.decision import Received
from hvd_dbs.job.step_parts import StepParts

_LOGGER = logging.getLogger(__name__)

_ROUNDS = 3
"""Rounds that have to show the same before it is logged."""


class BottleneckLog:
    """Follows the rounds of a job on rank 0."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The job has other ranks: what was measured is of no use any more."""
        self._rounds: deque[NDArray[np.float64]] = deque(maxlen=_ROUNDS)
        self._kinds: deque[tuple[object, ...]] = deque(maxlen=_ROUNDS)
        self._logged: tuple[object, ...] = ("none", None)

    def note(self, received: Received, hosts: Sequence[str], links: Sequence[Link]) -> None:
        """A round is over.

        Args:
            received: What its ranks have measured.
            hosts: Of the ranks, by rank.
            links: What is known of the links between them.
        """
        parts = StepParts.of(received)
        if not math.isfinite(parts.rest):
            return
        self._rounds.append(parts.as_row)
        parts = StepParts(*np.median(np.array(self._rounds), axis=0).tolist())
        found = Bottleneck.of(parts, len(set(hosts)), links)
        if found is None:
            return
        link = found.slowest if found.names_a_link else None
        # Of the links of a slow host now one is the slowest, now another.
        named = found.slow_host or (link and frozenset((link.source, link.target)))
        self._kinds.append((found.kind, named))
        is_settled = len(self._kinds) == _ROUNDS and len(set(self._kinds)) == 1
        if is_settled and self._kinds[-1] != self._logged:
            self._logged = self._kinds[-1]
            _LOGGER.info("%s", found.text)
