"""What the first rank that fails lets the others know, so that all end with the same message.

The others wait in an operation that fails when that rank leaves, and then can exchange nothing any
more. So the text goes beside the collectives: over MPI, or over the launcher's store (Gloo).
"""

from __future__ import annotations

import logging

import horovod.tensorflow as hvd

from hvd_dbs.comm import launcher_store
from hvd_dbs.comm.collective import is_elastic
from hvd_dbs.watchdog.crash_report import Notice
from hvd_dbs.watchdog.exit_barrier import inbox

_LOGGER = logging.getLogger(__name__)

_SCOPE, _KEY = "hvd_dbs", "failure"
_SECONDS = 5.0
"""Others that do not answer in this time are frozen or gone, or fail at the same time."""


class _MpiNotice:
    """Over MPI, from the first exchange of hvd_dbs on."""

    def send(self, text: str) -> None:
        """To all other ranks."""
        if inbox.cache_info().currsize:
            inbox().send(text, _SECONDS)

    def received(self) -> str:
        """What another rank has sent, or ""."""
        return inbox().text if inbox.cache_info().currsize else ""


class _StoreNotice:
    """Over the launcher's store. Where that is gone, so is the job."""

    def __init__(self) -> None:
        self._is_sent = False

    def send(self, text: str) -> None:
        """To all other ranks."""
        if self._is_sent:
            return
        self._is_sent = True
        try:
            launcher_store.put(_SCOPE, _KEY, text, _SECONDS)
        except RuntimeError as error:
            _LOGGER.debug("the other ranks get no notice: %s", error)

    def received(self) -> str:
        """What another rank has sent, or ""."""
        try:
            return launcher_store.get(_SCOPE, _KEY, _SECONDS) or ""
        except RuntimeError as error:
            _LOGGER.debug("no notice of another rank: %s", error)
            return ""


def of_job() -> Notice | None:
    """How this job's ranks learn of a failure; None: an elastic job goes on without it.

    To be called after `hvd.init()`.
    """
    if is_elastic() or hvd.size() == 1:
        return None
    if hvd.mpi_enabled():
        return _MpiNotice()
    return _StoreNotice() if launcher_store.is_there() else None
