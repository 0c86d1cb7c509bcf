"""A rank's own time, taken inside the training step, and news that travel with its gradients."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.ops import native

_CAPACITY = 4096
_NEVER = float("nan")
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
    """

    busy_seconds: NDArray[np.float64]
    wait_seconds: NDArray[np.float64]
    num_samples: NDArray[np.float64]
    data_seconds: NDArray[np.float64]


class StepClock:
    """Splits each step into busy and wait seconds.

    All ranks leave a step together, so the time of a whole step tells nothing about a rank. The
    clock notes when the last local gradient is ready and when the last reduced one is back:
    busy = ready(k) - back(k-1), wait = back(k) - ready(k). A step that follows a `restart` has no
    back(k-1) and does not count; the most recent 4096 steps are kept.

    With the native library a GPU's own time is taken, by events that are read later; nothing waits
    for them, so that the last steps may only be seen in the next `drain`. Without it the time at
    which the host asked the GPU for the gradients is all there is to see.

    It also knows which step of the epoch is under way, where somebody says so.

    Whether a rank has news travels with the gradients of each step: `tell` sets it, `told` is what
    goes, `hear` what comes back, and behind the step all ranks know by `take_heard`.

    Attributes:
        is_heard: Whether what this rank tells goes anywhere: the same on all ranks.
    """

    def __init__(self) -> None:
        self.is_heard = False
        library = native.loaded()
        self._recorder: _Recorder = (
            _TensorFlowRecorder() if library is None else _NativeRecorder(library)
        )
        self._fed: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        with tf.init_scope(), tf.device("CPU"):
            self._waits = tf.Variable(False)

    @property
    def waits_for_others(self) -> bool:
        """Whether a step is between `ready` and `back`. For other threads."""
        return bool(self._waits.numpy())

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

    def fed(self, data: Sequence[tf.Tensor]) -> None:
        """Notes that these data of the step are there; in the graph, in each once.

        By the host's time.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph in self._fed:
            return
        self._fed.add(graph)
        with tf.control_dependencies(list(data)), tf.device("CPU"):
            self._recorder.fed()

    def ready(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Notes that these local gradients are ready; in the graph. Its result is for `back`."""
        with tf.control_dependencies(list(gradients)):
            self._waits.assign(True)
            return self._recorder.ready()

    def back(self, ready: tf.Tensor, reduced: Sequence[tf.Tensor], num_samples: tf.Tensor) -> None:
        """Notes a step whose reduced gradients these are; in the graph.

        Less than no samples: it was noted before, and more gradients were reduced in it.
        """
        with tf.device("CPU"):
            parts = tf.cast(tf.round(tf.cast(num_samples, tf.float64) * _PARTS), tf.int64)
        with tf.control_dependencies([ready, *reduced]):
            self._recorder.back(ready, parts)
            self._waits.assign(False)

    def exclude(self, seconds: float) -> None:
        """So many seconds since the last step were no work of the step under way."""
        self._recorder.exclude(seconds)

    def begin_step(self, step: int) -> None:
        """Says which step of the epoch is under way; -1: nobody does."""
        self._recorder.begin_step(step)

    def step_under_way(self) -> tf.Tensor:
        """What `begin_step` was told last, int64, -1 before; in the graph."""
        with tf.device("CPU"):
            return self._recorder.step_under_way()

    def tell(self, has_news: bool) -> None:
        """Whether this rank has news, from the next step on."""
        self._recorder.tell(has_news)

    def told(self) -> tf.Tensor:
        """What this rank tells in a step, float32: 1 where it has news, else 0; in the graph."""
        self.is_heard = True
        with tf.device("CPU"):
            return self._recorder.told()

    def hear(self, told: tf.Tensor) -> None:
        """Notes a mean of what all ranks tell in a step; in the graph."""
        with tf.device("CPU"):
            self._recorder.hear(tf.cast(told, tf.float32))

    def take_heard(self) -> bool:
        """Whether a rank has told news since the last call: the same on all behind each step."""
        return self._recorder.take_heard()

    def peek(self, num_steps: int) -> list[tuple[float, float]]:
        """Busy seconds and samples of the newest steps, at most so many, oldest first.

        The next `drain` has them too.
        """
        newest = self._recorder.peek(num_steps)
        rows = newest.tolist()
        if any(row[2] < 0 for row in rows):  # Asking NumPy takes longer than all else here.
            rows = _whole_steps(newest).tolist()
        return [(busy_seconds, num_parts / _PARTS) for busy_seconds, _, num_parts, _ in rows]

    def drain(self) -> StepTimes:
        """The steps since the last call, oldest first."""
        times = _whole_steps(self._recorder.drain())
        busy_seconds, wait_seconds, num_parts, data_seconds = times.T.copy()
        return StepTimes(busy_seconds, wait_seconds, num_parts / _PARTS, data_seconds)


def _whole_steps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """A row for each step, where gradients were reduced more than once in some."""
    is_first = rows[:, 2] >= 0
    if is_first.all():
        return rows
    rows = rows[np.argmax(is_first) :] if is_first.any() else rows[:0]
    starts = np.flatnonzero(rows[:, 2] >= 0)
    whole = rows[starts].copy()
    whole[:, :2] = np.add.reduceat(rows[:, :2], starts, axis=0)
    return whole


class _Recorder(Protocol):
    """Where and how times are taken."""

    def restart(self) -> None: ...

    def ask(self) -> None: ...

    def fed(self) -> None: ...

    def ready(self) -> tf.Tensor: ...

    def back(self, ready: tf.Tensor, num_parts: tf.Tensor) -> None: ...

    def exclude(self, seconds: float) -> None: ...

    def begin_step(self, step: int) -> None: ...

    def step_under_way(self) -> tf.Tensor: ...

    def tell(self, has_news: bool) -> None: ...

    def told(self) -> tf.Tensor: ...

    def hear(self, told: tf.Tensor) -> None: ...

    def take_heard(self) -> bool: ...

    def drain(self) -> NDArray[np.float64]: ...

    def peek(self, num_steps: int) -> NDArray[np.float64]: ...


class _NativeRecorder:
    """Operations of the native library on the device of the gradients, and a clock in it."""

    def __init__(self, library: native.NativeLibrary) -> None:
        self._ops, self._functions = library.ops, library.clock_functions
        self._clock = int(self._functions.hvd_dbs_step_clock_new(_CAPACITY))
        weakref.finalize(self, self._functions.hvd_dbs_step_clock_delete, self._clock)
        # Where they are drained to; kept, since that happens between the steps of a training.
        self._times = np.empty((_CAPACITY, 4))
        self._pointer = self._times.ctypes.data_as(ctypes.POINTER(ctypes.c_double))

    def restart(self) -> None:
        self._functions.hvd_dbs_step_clock_restart(self._clock)

    def ask(self) -> None:
        self._functions.hvd_dbs_step_clock_ask(self._clock)

    def fed(self) -> None:
        self._ops.hvd_dbs_step_fed(clock=self._clock)

    def ready(self) -> tf.Tensor:
        return self._ops.hvd_dbs_step_ready(clock=self._clock)

    def back(self, ready: tf.Tensor, num_parts: tf.Tensor) -> None:
        self._ops.hvd_dbs_step_back(noted=ready, num_samples=num_parts, clock=self._clock)

    def exclude(self, seconds: float) -> None:
        self._functions.hvd_dbs_step_clock_exclude(self._clock, seconds)

    def begin_step(self, step: int) -> None:
        self._functions.hvd_dbs_step_clock_begin_step(self._clock, step)

    def step_under_way(self) -> tf.Tensor:
        return self._ops.hvd_dbs_step_under_way(clock=self._clock)

    def tell(self, has_news: bool) -> None:
        self._functions.hvd_dbs_step_clock_tell(self._clock, has_news)

    def told(self) -> tf.Tensor:
        return self._ops.hvd_dbs_step_tell(clock=self._clock)

    def hear(self, told: tf.Tensor) -> None:
        self._ops.hvd_dbs_step_hear(told=told, clock=self._clock)

    def take_heard(self) -> bool:
        return bool(self._functions.hvd_dbs_step_clock_take_heard(self._clock))

    def drain(self) -> NDArray[np.float64]:
        num_steps = self._functions.hvd_dbs_step_clock_drain(self._clock, self._pointer, _CAPACITY)
        return self._times[:num_steps]

    def peek(self, num_steps: int) -> NDArray[np.float64]:
        num_known = self._functions.hvd_dbs_step_clock_peek(self._clock, self._pointer, num_steps)
        return self._times[:num_known]


class _TensorFlowRecorder:
    """Timestamps in variables."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU"):
            self._times = tf.Variable(tf.fill([_CAPACITY, 4], tf.constant(0.0, tf.float64)))
            self._back = tf.Variable(_NEVER, dtype=tf.float64)
            self._asked = tf.Variable(_NEVER, dtype=tf.float64)
            self._data_seconds = tf.Variable(_NEVER, dtype=tf.float64)
            self._num_steps = tf.Variable(0, dtype=tf.int64)
            self._step = tf.Variable(-1, dtype=tf.int64)
            self._has_news = tf.Variable(0.0)
            self._heard = tf.Variable(False)

    def restart(self) -> None:
        with tf.init_scope():  # Lifted out of a graph that is being traced.
            self._back.assign(_NEVER)
            self._asked.assign(_NEVER)

    def ask(self) -> None:
        self._asked.assign(time.time())  # The clock of `tf.timestamp`.

    def fed(self) -> None:
        self._data_seconds.assign(tf.timestamp() - self._asked)
        self._asked.assign(_NEVER)

    def ready(self) -> tf.Tensor:
        with tf.device("CPU"):
            return tf.timestamp()

    def back(self, ready: tf.Tensor, num_parts: tf.Tensor) -> None:
        with tf.device("CPU"):
            now = tf.timestamp()
            row = [ready - self._back, now - ready, tf.cast(num_parts, tf.float64)]
            row = tf.stack([*row, self._data_seconds])
            self._times.scatter_nd_update([[self._num_steps % _CAPACITY]], [row])
            self._data_seconds.assign(_NEVER)
            self._num_steps.assign_add(1)
            self._back.assign(now)
            self._asked.assign(now)  # The next step of the same call; else it is asked for later.

    def exclude(self, seconds: float) -> None:
        self._back.assign_add(seconds)

    def begin_step(self, step: int) -> None:
        # A third of what `assign` takes: this is done in each step.
        value = tf.constant(step, tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self._step.handle, value=value)

    def step_under_way(self) -> tf.Tensor:
        return self._step.read_value()

    def tell(self, has_news: bool) -> None:
        self._has_news.assign(float(has_news))

    def told(self) -> tf.Tensor:
        return self._has_news.read_value()

    def hear(self, told: tf.Tensor) -> None:
        self._heard.assign(self._heard.read_value() | (told > 0))

    def take_heard(self) -> bool:
        heard = bool(self._heard.numpy())
        if heard:
            self._heard.assign(False)
        return heard

    def drain(self) -> NDArray[np.float64]:
        times = self.peek(_CAPACITY)
        self._num_steps.assign(0)
        return times

    def peek(self, num_steps: int) -> NDArray[np.float64]:
        num_known, times = int(self._num_steps.numpy()), self._times.numpy()
        if num_known > _CAPACITY:
            times = np.roll(times, -(num_known % _CAPACITY), axis=0)
        known = times[: min(num_known, _CAPACITY)]
        return known[max(len(known) - num_steps, 0) :]
