"""What Horovod takes to agree on a sum, whatever its size."""

from __future__ import annotations

import functools
import time
from typing import Any

_TRIES = 5
"""Of which the shortest counts: others have met a sum of the training, or another thread."""


def negotiation_seconds(size: int) -> float:
    """What the sum of one number takes: Horovod's cycle and its round trips, and next to no bytes.

    Each bucket of gradients takes as long, and its bytes' time. Collective.

    Args:
        size: Number of ranks that call it.

    Returns:
        0 for one rank; NaN where they are not Horovod's ranks.
    """
    import horovod.tensorflow as hvd

    if size == 1:
        return 0.0
    if not hvd.is_initialized() or hvd.size() != size:
        return float("nan")
    seconds = []
    for _ in range(1 + _TRIES):  # All ranks leave the first one together.
        start = time.perf_counter()
        _sum_of_one()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


@functools.cache
def _function() -> Any:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    def sum_of_one() -> Any:
        with tf.device("CPU"):
            return hvd.allreduce(tf.ones([]), op=hvd.Sum, name="hvd_dbs.negotiation")

    # Called eagerly, all of Horovod's operations of a kind have one name.
    return tf.function(sum_of_one, autograph=False)


def _sum_of_one() -> None:
    _function()().numpy()
