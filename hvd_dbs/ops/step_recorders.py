"""Where and how a step clock takes its times: the native library, or TensorFlow's timestamps."""

from __future__ import annotations

import ctypes
import time
import weakref
from typing import Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.ops import native

_CAPACITY = 4096
"""Steps that are kept, the most recent ones."""

_NUM_COLUMNS = 7
"""Numbers that are known of a step: the fields of `StepTimes`."""

_NEVER = float("nan")


class Recorder(Protocol):
    """What notes the times of a `StepClock`, which says what each method means.

    Attributes:
        number: Of the native clock; `native.NO_CLOCK`: there is none, and nobody notes buckets.
    """

    number: int

    def restart(self) -> None:
        """The step under way does not count."""

    def ask(self) -> None:
        """The data of a step are asked for."""

    def fed(self) -> tf.Operation:
        """They are there; in the graph. Returns what takes the time."""

    def ready(self) -> tf.Tensor:
        """The rank's own gradients are ready; in the graph."""

    def back(self, ready: tf.Tensor, num_parts: tf.Tensor) -> None:
        """The reduced gradients are back; work as a whole number, int64; in the graph."""

    def waits_for_others(self) -> bool:
        """Whether a step is between `ready` and `back`."""

    def exclude(self, seconds: float) -> None:
        """So much of the step under way is none of its work."""

    def begin_step(self, step: int) -> None:
        """This step of the epoch is under way."""

    def step_under_way(self) -> tf.Tensor:
        """What `begin_step` was given last, int64; in the graph."""

    def send_signal(self, has_changed: bool) -> None:
        """Whether this rank signals a change."""

    def signal(self) -> tf.Tensor:
        """The same, float32; in the graph."""

    def receive_signal(self, signal: tf.Tensor) -> None:
        """A mean of the signals of all ranks; in the graph."""

    def take_signal(self) -> bool:
        """Whether a rank has signalled a change since the last call."""

    def drain(self) -> NDArray[np.float64]:
        """Of each new step what `StepTimes` has, in that order, shape `[steps, 7]`."""

    def peek(self, num_steps: int) -> NDArray[np.float64]:
        """The newest of them, which stay."""


def make_recorder() -> Recorder:
    """The native library's, where there is one."""
    library = native.loaded()
    return _TensorFlowRecorder() if library is None else _NativeRecorder(library)


class _NativeRecorder:
    """Operations of the native library on the device of the gradients, and a clock in it."""

    def __init__(self, library: native.NativeLibrary) -> None:
        self._ops, self._functions = library.ops, library.clock_functions
        self.number = int(self._functions.hvd_dbs_step_clock_new(_CAPACITY))
        weakref.finalize(self, self._functions.hvd_dbs_step_clock_delete, self.number)
        # Where they are drained to; kept, since that happens between the steps of a training.
        self._times = np.empty((_CAPACITY, _NUM_COLUMNS))
        self._pointer = self._times.ctypes.data_as(ctypes.POINTER(ctypes.c_double))

    def restart(self) -> None:
        self._functions.hvd_dbs_step_clock_restart(self.number)

    def ask(self) -> None:
        self._functions.hvd_dbs_step_clock_ask(self.number)

    def fed(self) -> tf.Operation:
        return self._ops.hvd_dbs_step_fed(clock=self.number)

    def ready(self) -> tf.Tensor:
        return self._ops.hvd_dbs_step_ready(clock=self.number)

    def back(self, ready: tf.Tensor, num_parts: tf.Tensor) -> None:
        self._ops.hvd_dbs_step_back(noted=ready, num_samples=num_parts, clock=self.number)

    def waits_for_others(self) -> bool:
        return bool(self._functions.hvd_dbs_step_clock_waits_for_others(self.number))

    def exclude(self, seconds: float) -> None:
        self._functions.hvd_dbs_step_clock_exclude(self.number, seconds)

    def begin_step(self, step: int) -> None:
        self._functions.hvd_dbs_step_clock_begin_step(self.number, step)

    def step_under_way(self) -> tf.Tensor:
        return self._ops.hvd_dbs_step_under_way(clock=self.number)

    def send_signal(self, has_changed: bool) -> None:
        self._functions.hvd_dbs_step_clock_send_signal(self.number, has_changed)

    def signal(self) -> tf.Tensor:
        return self._ops.hvd_dbs_step_signal(clock=self.number)

    def receive_signal(self, signal: tf.Tensor) -> None:
        self._ops.hvd_dbs_step_receive_signal(signal=signal, clock=self.number)

    def take_signal(self) -> bool:
        return bool(self._functions.hvd_dbs_step_clock_take_signal(self.number))

    def drain(self) -> NDArray[np.float64]:
        num_steps = self._functions.hvd_dbs_step_clock_drain(self.number, self._pointer, _CAPACITY)
        return self._times[:num_steps]

    def peek(self, num_steps: int) -> NDArray[np.float64]:
        num_known = self._functions.hvd_dbs_step_clock_peek(self.number, self._pointer, num_steps)
        return self._times[:num_known]


class _TensorFlowRecorder:
    """Timestamps in variables; for sums that all begin when all gradients are ready."""

    number = native.NO_CLOCK

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU"):
            self._times = tf.Variable(tf.fill([_CAPACITY, 4], tf.constant(0.0, tf.float64)))
            self._back = tf.Variable(_NEVER, dtype=tf.float64)
            self._asked = tf.Variable(_NEVER, dtype=tf.float64)
            self._data_seconds = tf.Variable(_NEVER, dtype=tf.float64)
            self._num_steps = tf.Variable(0, dtype=tf.int64)
            self._step = tf.Variable(-1, dtype=tf.int64)
            self._has_changed = tf.Variable(0.0)
            self._received = tf.Variable(False)
            self._waits = tf.Variable(False)

    def restart(self) -> None:
        with tf.init_scope():  # Lifted out of a graph that is being traced.
            self._back.assign(_NEVER)
            self._asked.assign(_NEVER)
            self._waits.assign(False)  # In a step that never came back, as another rank failed.

    def ask(self) -> None:
        self._asked.assign(time.time())  # The clock of `tf.timestamp`.

    def fed(self) -> tf.Operation:
        now = tf.timestamp()
        self._data_seconds.assign(now - self._asked)
        self._asked.assign(_NEVER)
        return now.op

    def ready(self) -> tf.Tensor:
        with tf.device("CPU"), tf.control_dependencies([self._waits.assign(True)]):
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
            self._waits.assign(False)
            self._asked.assign(now)  # The next step of the same call; else it is asked for later.

    def waits_for_others(self) -> bool:
        return bool(self._waits.numpy())

    def exclude(self, seconds: float) -> None:
        self._back.assign_add(seconds)

    def begin_step(self, step: int) -> None:
        # A third of what `assign` takes: this is done in each step.
        value = tf.constant(step, tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self._step.handle, value=value)

    def step_under_way(self) -> tf.Tensor:
        return self._step.read_value()

    def send_signal(self, has_changed: bool) -> None:
        self._has_changed.assign(float(has_changed))

    def signal(self) -> tf.Tensor:
        with tf.device("CPU"):
            return self._has_changed.read_value()

    def receive_signal(self, signal: tf.Tensor) -> None:
        with tf.device("CPU"):
            self._received.assign(self._received.read_value() | (signal > 0))

    def take_signal(self) -> bool:
        received = bool(self._received.numpy())
        if received:
            self._received.assign(False)
        return received

    def drain(self) -> NDArray[np.float64]:
        times = self.peek(_CAPACITY)
        self._num_steps.assign(0)
        return times

    def peek(self, num_steps: int) -> NDArray[np.float64]:
        num_known, times = int(self._num_steps.numpy()), self._times.numpy()
        if num_known > _CAPACITY:
            times = np.roll(times, -(num_known % _CAPACITY), axis=0)
        known = times[: min(num_known, _CAPACITY)]
        known = known[max(len(known) - num_steps, 0) :]
        busy_seconds, wait_seconds = known[:, 0], known[:, 1]
        return np.column_stack([known, busy_seconds, np.zeros(len(known)), wait_seconds])
