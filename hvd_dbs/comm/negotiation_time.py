"""What Horovod takes to agree on a sum, whatever its size."""

from __future__ import annotations

import functools
import time
from typing import Any

from hvd_dbs.comm.collective import Collective

_TRIES = 5
"""Of which the shortest counts: others have met a sum of the training, or another thread."""


def negotiation_seconds(collective: Collective) -> float:
    """What the sum of one number takes: Horovod's cycle and its round trips, and next to no bytes.

    Each bucket of gradients takes as long, and its bytes' time. Collective.

    Args:
        collective: The ranks that call it.

    Returns:
        0 for one rank; NaN where they are not Horovod's ranks.
    """
    import horovod.tensorflow as hvd
    import tensorflow as tf

    if collective.size == 1:
        return 0.0
    if not hvd.is_initialized() or hvd.size() != collective.size:
        return float("nan")
    seconds, sum_of_all, one = [], _sum(), tf.ones([])
    for _ in range(1 + _TRIES):  # All ranks leave the first one together.
        collective.require_open()
        start = time.perf_counter()
        sum_of_all(one).numpy()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


@functools.cache
def _sum() -> Any:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    def sum_of_all(one: Any) -> Any:
        with tf.device("CPU"):
            return hvd.allreduce(one, op=hvd.Sum, name="hvd_dbs.negotiation")

    # A sum of a constant would be folded: TensorFlow would compute it once, and remember it.
    spec = tf.TensorSpec([], tf.float32)
    # Called eagerly, all of Horovod's operations of a kind have one name.
    return tf.function(sum_of_all, [spec], autograph=False).get_concrete_function()
