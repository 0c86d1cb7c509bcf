"""A rank's busy time, taken inside the training step, and the change signal of its gradients."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.ops import native
from hvd_dbs.ops.step_recorders import make_recorder

_PARTS = 1024.0
"""Recorders count work in whole numbers, of these parts of a sample."""


@dataclass(frozen=True)
class StepTimes:
    """What a clock saw, step by step.

    Attributes:
        busy_seconds: From the start of the step, data wait included, until the rank's own
            gradients were ready; NaN where the step does not count; shape `[steps]`.
        wait_seconds: From then until the reduced gradients were back, shape `[steps]`.
        num_samples: Samples that the rank contributed, shape `[steps]`; where samples differ in
            cost, what they cost in samples of mean cost.
        data_seconds: From when the step's data were asked for until they were there, part of
            `busy_seconds`; NaN where nobody has noted both; shape `[steps]`.
        first_bucket_seconds: From the start of the step until the first bucket of gradients was
            ready to be sent; NaN where unknown, as below; shape `[steps]`.
        overlap_seconds: During which some bucket but the last was on its way, waiting for the same
            bucket of other ranks included; 0 where there is one bucket; shape `[steps]`.
        last_bucket_seconds: From when all was ready and all buckets but the last were back until
            the step was over, waiting for other ranks included; shape `[steps]`.
    """

    busy_seconds: NDArray[np.float64]
    wait_seconds: NDArray[np.float64]
    num_samples: NDArray[np.float64]
    data_seconds: NDArray[np.float64]
    first_bucket_seconds: NDArray[np.float64]
    overlap_seconds: NDArray[np.float64]
    last_bucket_seconds: NDArray[np.float64]


_noting: ContextVar[int] = ContextVar("hvd_dbs_noting_clock", default=native.NO_CLOCK)


def noting_clock() -> int:
    """Number of the native clock that notes buckets now; `native.NO_CLOCK`: none does."""
    return _noting.get()


class StepClock:
    """Splits each step into busy and wait seconds.

    All ranks leave a step together, so the time of a whole step tells nothing about a rank. The
    clock notes when the last local gradient is ready and when the last reduced one is back:
    busy = ready(k) - back(k-1), wait = back(k) - ready(k). A step that follows a `restart` has no
    back(k-1) and does not count; the most recent 4096 steps are kept. Where gradients travel in
    several buckets it notes when each is sent and back.

    With the native library the time is the GPU's, by events that are read later; nothing waits
    for them, so that the last steps may only be seen in the next `drain`. Without it the time at
    which the host asked the GPU for the gradients is all there is to see.

    It also knows which step of the epoch is under way, where somebody says so.

    A change signal travels with the gradients of each step: `send_signal` sets it,
    `signal` is what goes, `receive_signal` gets what comes back, and after the step all ranks know
    by `take_signal`.

    Attributes:
        sends_signals: Whether what this rank tells goes anywhere: the same on all ranks.
    """

    def __init__(self) -> None:
        self.sends_signals = False
        self._recorder = make_recorder()
        self._fed: weakref.WeakSet[tf.Graph] = weakref.WeakSet()

    @property
    def waits_for_others(self) -> bool:
        """Whether a step is between `ready` and `back`. For other threads."""
        return self._recorder.waits_for_others()

    def restart(self) -> None:
        """Leaves the step under way out: it holds more than a step's work.

        Called where an epoch starts, after a validation, and while a step is being traced (then
        it happens once, for the slow first step).
        """
        self._recorder.restart()

    def ask(self) -> None:
        """Notes that training is about to ask for the data of a step.

        Otherwise it asks when the step before is over.
        """
        self._recorder.ask()

    def fed(self, data: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Notes that these data of the step are there; in the graph, in each once.

        By the host's time. What it returns, `ready` has to come after.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph in self._fed:
            return []
        self._fed.add(graph)
        with tf.control_dependencies(list(data)), tf.device("CPU"):
            fed = self._recorder.fed()
        # It comes last in the graph, but must not wait for what else in the step has an effect.
        if (order := getattr(graph, "experimental_acd_manager", None)) is not None:
            order.run_independently(fed)
        return [fed]

    def ready(self, gradients: Sequence[tf.Tensor | tf.Operation]) -> tf.Tensor:
        """Notes that these local gradients are ready; in the graph. Its result is for `back`."""
        with tf.control_dependencies(list(gradients)):
            return self._recorder.ready()

    def back(self, ready: tf.Tensor, reduced: Sequence[tf.Tensor], num_samples: tf.Tensor) -> None:
        """Notes a step whose reduced gradients these are; in the graph.

        Less than no samples: it was noted before, and more gradients were reduced in it.
        """
        with tf.device("CPU"):
            parts = tf.cast(tf.round(tf.cast(num_samples, tf.float64) * _PARTS), tf.int64)
        with tf.control_dependencies([ready, *reduced]):
            self._recorder.back(ready, parts)

    @contextlib.contextmanager
    def noting_buckets(self) -> Iterator[None]:
        """Buckets of what is reduced within are noted here; in the graph."""
        token = _noting.set(self._recorder.number)
        try:
            yield
        finally:
            _noting.reset(token)

    def exclude(self, seconds: float) -> None:
        """So many seconds since the last step were no work of the step under way."""
        self._recorder.exclude(seconds)

    def begin_step(self, step: int) -> None:
        """Says which step of the epoch is under way; -1: nobody does."""
        self._recorder.begin_step(step)

    def step_under_way(self) -> tf.Tensor:
        """What `begin_step` was given last, int64, -1 before; in the graph."""
        with tf.device("CPU"):
            return self._recorder.step_under_way()

    def send_signal(self, has_changed: bool) -> None:
        """Whether this rank signals a change, from the next step on."""
        self._recorder.send_signal(has_changed)

    def signal(self) -> tf.Tensor:
        """What this rank tells in a step, float32: 1 where it has changed, else 0; in the graph."""
        self.sends_signals = True
        return self._recorder.signal()

    def receive_signal(self, signal: tf.Tensor) -> None:
        """Notes a mean of the signals of all ranks in a step; in the graph."""
        self._recorder.receive_signal(tf.cast(signal, tf.float32))

    def take_signal(self) -> bool:
        """Whether a rank signalled a change since the last call: the same on all after a step."""
        return self._recorder.take_signal()

    def peek(self, num_steps: int) -> list[tuple[float, float]]:
        """Busy seconds and samples of the newest steps, at most so many, oldest first.

        The next `drain` has them too.
        """
        newest = self._recorder.peek(num_steps)
        rows = newest.tolist()
        if any(row[2] < 0 for row in rows):  # Asking NumPy takes longer than all else here.
            rows = _whole_steps(newest).tolist()
        return [(row[0], row[2] / _PARTS) for row in rows]

    def drain(self) -> StepTimes:
        """The steps since the last call, oldest first."""
        times = _whole_steps(self._recorder.drain())
        busy_seconds, wait_seconds, num_parts, *others = times.T.copy()
        return StepTimes(busy_seconds, wait_seconds, num_parts / _PARTS, *others)


def _whole_steps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """A row for each step, where gradients were reduced more than once in some."""
    is_first = rows[:, 2] >= 0
    if is_first.all():
        return rows
    rows = rows[np.argmax(is_first) :] if is_first.any() else rows[:0]
    starts = np.flatnonzero(rows[:, 2] >= 0)
    whole = rows[starts].copy()
    whole[:, :2] = np.add.reduceat(rows[:, :2], starts, axis=0)
    # Whose buckets could be hidden by whose gradients?
    whole[np.diff([*starts, len(rows)]) > 1, 4:] = np.nan
    return whole
