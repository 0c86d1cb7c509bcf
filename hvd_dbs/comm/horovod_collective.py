"""Exchanges over Horovod itself, where it has started the job (Gloo)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.threaded_collective import ThreadedCollective


class HorovodCollective(ThreadedCollective):
    """Horovod's own operations, for jobs that MPI did not start (Gloo).

    Args:
        name: What its operations are called: those of two collectives may be under way at once.
    """

    def __init__(self, name: str) -> None:
        import horovod.tensorflow as hvd

        super().__init__(hvd.rank(), hvd.size())
        self._of_rows = partial(hvd.allgather, name=f"hvd_dbs.{name}.allgather")
        self._of_rank_0 = partial(hvd.broadcast, root_rank=0, name=f"hvd_dbs.{name}.broadcast")
        self._functions: dict[tuple[Any, ...], Callable[[Any], Any]] = {}

    def _allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        if row.size == 0:
            return np.empty((self.size, *row.shape), row.dtype)
        return self._run(self._of_rows, row[np.newaxis])

    def _broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        return self._run(self._of_rank_0, row)

    def _run(self, operation: Callable[[Any], Any], row: NDArray[Any]) -> NDArray[Any]:
        import tensorflow as tf

        # Called eagerly, all of Horovod's operations of a kind have one name, and no two may be
        # under way at once, of ours and of the user's; in a function each has its own. A function
        # of several types would be traced again and again, with a warning; it also comes where
        # several functions are made of the same code, which a `partial` has none of.
        sent = np.array(row)
        key = (operation, sent.dtype, sent.ndim)
        if key not in self._functions:
            spec = tf.TensorSpec([None] * sent.ndim, sent.dtype)
            function = tf.function(partial(operation), [spec], autograph=False)
            self._functions[key] = function.get_concrete_function()  # Takes long.
        self.require_open()
        return np.array(self._functions[key](tf.constant(sent)))
