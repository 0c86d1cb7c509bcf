"""How many ranks take part in a step."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.comm.collective import is_elastic


def num_ranks(process_set: hvd.ProcessSet = hvd.global_process_set) -> int | tf.Tensor:
    """Ranks of a process set, a scalar: in elastic jobs read in each step, not as it is traced."""
    if is_elastic():
        return hvd.size_op(process_set_id=process_set.process_set_id)
    return int(process_set.size())
