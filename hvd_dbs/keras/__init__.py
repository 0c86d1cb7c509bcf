"""Horovod's Keras interface on Keras 3, with balanced batch sizes.

Use it in place of `horovod.tensorflow.keras`, or of `horovod.keras`.
"""

# First, for what Horovod says of a Keras that does not fit hides the cause.
import hvd_dbs.keras.checked_stack

# isort: split
from horovod.tensorflow import Adasum
from horovod.tensorflow.keras import (
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
)

from hvd_dbs import data
from hvd_dbs.balancer import Balancer
from hvd_dbs.balancing import strategies
from hvd_dbs.elastic.rendezvous import init
from hvd_dbs.job import observers
from hvd_dbs.keras import callbacks, elastic, layers
from hvd_dbs.keras.global_batch import global_batch
from hvd_dbs.keras.micro_batches import accumulate_gradients
from hvd_dbs.keras.operations import allgather, allreduce, broadcast, reducescatter
from hvd_dbs.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
from hvd_dbs.keras.random_streams import split_random_seeds
from hvd_dbs.tensorflow.global_batch import global_mean, global_sum
from hvd_dbs.tensorflow.variables import broadcast_global_variables, broadcast_variables
from hvd_dbs.watchdog.exit_barrier import shutdown

__all__ = [
    "Adasum",
    "Average",
    "Balancer",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "accumulate_gradients",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data",
    "ddl_built",
    "elastic",
    "global_batch",
    "global_mean",
    "global_process_set",
    "global_sum",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "layers",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "observers",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "split_random_seeds",
    "start_timeline",
    "stop_timeline",
    "strategies",
]
