"""What follows a job on rank 0."""

from __future__ import annotations

from collections.abc import Callable

from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.scores import RankScores


class Observer:
    """Receives on rank 0 what all ranks have measured; derive from it and override methods.

    They are called on a thread of the observer's own, in order. No step of training waits for
    them, but the end of a `fit` does, for five seconds at most. An exception is logged once, as a
    warning, and ends nothing.

    Example:
        >>> class Steps(Observer):
        ...     def on_round(self, entry, scores):
        ...         print(f"a step takes {1000 * entry.step_seconds:.0f} ms")
    """

    def on_begin(self, job: JobEntry) -> None:
        """A training begins, or goes on with other ranks or another global batch size.

        Args:
            job: Hosts by rank, strategy and global batch size.
        """

    def on_round(self, entry: RoundEntry, scores: RankScores) -> None:
        """A round is over.

        Args:
            entry: What the journal has of it.
            scores: Of each rank, against the others and its own best.
        """

    def on_event(self, event: RankEvent) -> None:
        """A rank fell far below its own best speed, or has recovered."""

    def on_end(self) -> None:
        """The training is over. Let go of files and ports."""


def as_observer(given: object) -> Observer:
    """An observer as it is, or one that calls a function with each event.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(given, Observer):
        return given
    if isinstance(given, type) or not callable(given):
        raise TypeError(
            f"observe was given {given!r}; expected an observer, such as "
            f"hvd.observers.TensorBoard(folder), or a function that receives an event."
        )
    return OnEvent(given)


class OnEvent(Observer):
    """Calls a function with each event.

    Args:
        function: Receives a `RankEvent`.
    """

    def __init__(self, function: Callable[[RankEvent], None]) -> None:
        self._function = function

    def on_event(self, event: RankEvent) -> None:
        """Calls it."""
        self._function(event)

    def __repr__(self) -> str:
        return repr(self._function)
