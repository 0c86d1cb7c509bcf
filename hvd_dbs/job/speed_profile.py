"""A training starts with what others have measured, and leaves what it has measured itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvd_dbs.balancing import Controller, Plan
from hvd_dbs.balancing.first_plan import first_plan
from hvd_dbs.balancing.measured_speeds import MeasuredSpeeds
from hvd_dbs.balancing.place import Place
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.job.decision import Received
from hvd_dbs.job.profile_file import ProfileEntry, check_profile, read_profile, write_profile

_LOGGER = logging.getLogger(__name__)


def open_profile(collective: Collective, path: str | os.PathLike[str] | None) -> Path | None:
    """The file of a profile, which rank 0 must be able to read and write. Collective.

    Args:
        collective: The job.
        path: The file, which need not exist; None, on all ranks: there is none.

    Raises:
        ValueError: On all ranks, if rank 0 cannot use it, or it holds something else.
        TypeError: On all ranks, if it is no path on one of them.
    """
    if path is None:
        return None
    with agreement.raising_together(collective, (TypeError, ValueError)):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"profile={path!r}; expected the path of a file, or None.")
        if not os.fspath(path):
            raise ValueError("profile='' is empty; expected the path of a file, or None for none.")
        file = Path(path).absolute()  # Training may go to another folder.
        if collective.rank == 0:
            check_profile(file)
    return file


class SpeedProfile:
    """Reads a first plan from a file of rank 0, and writes what rounds measure to it.

    Whatever is wrong with the file after it was opened, training goes on without it.

    Args:
        collective: The job.
        controller: This rank's controller.
        places: Where each rank runs, by rank.
        path: The file, the same or another one on other ranks; None, on all ranks: none is used.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        places: Sequence[Place] = (),
        path: Path | None = None,
    ) -> None:
        self._collective, self._controller, self._path = collective, controller, path
        self._classes = [place.speed_class for place in places]
        self._measured = MeasuredSpeeds(self._classes)
        self._model = ""
        self._most: dict[str, int] = {}
        self._has_begun = self._has_measured = self._has_warned = False

    @property
    def is_used(self) -> bool:
        """Whether there is a file; the same on all ranks."""
        return self._path is not None

    def change_ranks(self, places: Sequence[Place]) -> None:
        """The job has other ranks, which run there."""
        self._classes = [place.speed_class for place in places]
        self._measured.change_ranks(self._classes)

    def begin_training(self, model: str, *, is_new: bool) -> None:
        """All ranks take over the first plan, if there is one. Collective where a file is used.

        Args:
            model: What tells the model from others; rank 0's counts.
            is_new: Whether training does not go on from somewhere; rank 0's counts.
        """
        if model != self._model:
            self._model, self._measured = model, MeasuredSpeeds(self._classes)
        if self._path is None:
            return
        # What this job has measured itself counts more, also before its first commit.
        is_new, self._has_begun = is_new and not self._has_begun, True
        batch_sizes = np.zeros(self._collective.size, dtype=np.int64)
        if self._collective.rank == 0 and is_new:
            plan = self._first_plan(self._path)
            if plan is not None:
                batch_sizes[:] = plan.batch_sizes
        batch_sizes = self._collective.broadcast(batch_sizes)
        if batch_sizes.any():
            self._controller.adopt(Plan(tuple(batch_sizes.tolist())))

    def most_samples(self, model: str) -> int | None:
        """What earlier trainings found to fit into this rank's memory. Collective with a file.

        Args:
            model: What tells the model from others; rank 0's counts.

        Returns:
            Samples of a step; None where nothing is known.
        """
        if self._path is None:
            return None
        most = np.zeros(self._collective.size, dtype=np.int64)
        if self._collective.rank == 0:
            try:
                known = read_profile(self._path, model, self._controller.global_batch_size)
                if known is not None:
                    most[:] = [known.most.get(name, 0) for name in self._classes]
            except Exception as error:  # As below.
                self._warn("is not used", error)
        return int(self._collective.broadcast(most)[self._collective.rank]) or None

    def note_most_samples(self, most: Sequence[int | None]) -> None:
        """What was found to fit, by rank, to be written with the next round; None: no limit."""
        self._most = {}
        for name, number in zip(self._classes, most, strict=True):
            if name and number is not None:
                self._most[name] = min(number, self._most.get(name, number))

    def add(self, received: Received | None) -> None:
        """A round is over; received is what rank 0 knows of it, None on the other ranks."""
        if self._path is not None and received is not None:
            self._measured.add(received.batch_sizes, received.busy_seconds)
            self._has_measured = True

    def write(self) -> None:
        """Writes what was measured since the last call to the file. For rank 0."""
        if self._path is None or not self._has_measured or self._collective.rank != 0:
            return
        self._has_measured = False
        try:
            size, speeds = self._controller.global_batch_size, self._measured.speeds()
            if speeds:
                write_profile(self._path, ProfileEntry(self._model, size, speeds, self._most))
        except Exception as error:  # Balancing never ends the training.
            self._warn("is not written", error)

    def _first_plan(self, path: Path) -> Plan | None:
        controller = self._controller
        if controller.strategy.keeps_plan:
            return None
        try:
            size = controller.global_batch_size
            known = read_profile(path, self._model, size)
            speeds = {} if known is None else known.speeds
            with np.errstate(all="ignore"):
                problem = Problem(size, controller.bounds, controller.plan)
                plan = first_plan(problem, speeds, self._classes)
        except Exception as error:  # As above.
            self._warn("is not used", error)
            return None
        if plan is None or not controller.bounds.allow(plan.samples):
            return None
        _LOGGER.info(
            "%s -> %s to begin with, by what earlier trainings measured (%s)",
            controller.plan,
            plan,
            path,
        )
        return plan

    def _warn(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOGGER.warning("the profile %s: %s; training goes on", what, error)
