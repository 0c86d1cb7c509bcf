"""Horovod's Keras interface on Keras 3, with balanced batch sizes.

Use it in place of `horovod.tensorflow.keras`.
"""

from horovod.tensorflow.keras import (
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
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
    reducescatter,
    remove_process_set,
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
)

from hvd_dbs import data
from hvd_dbs.balancer import Balancer
from hvd_dbs.balancing import strategies
from hvd_dbs.cluster.leaving import shutdown
from hvd_dbs.cluster.rendezvous import init
from hvd_dbs.keras import callbacks, elastic, layers
from hvd_dbs.keras.global_batch import global_batch
from hvd_dbs.keras.optimizer import DistributedOptimizer, load_model
from hvd_dbs.keras.random_streams import split_random_seeds
from hvd_dbs.tensorflow.global_batch import global_mean, global_sum

__all__ = [
    "Average",
    "Balancer",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
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
