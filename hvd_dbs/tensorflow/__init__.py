"""Horovod's TensorFlow interface, with weighted averages for uneven batches.

Use it in place of `horovod.tensorflow`: every public name of that is here and means the same.
"""

# First, for what Horovod says of a Keras that does not fit hides the cause.
import hvd_dbs.tensorflow.checked_stack

# isort: split
from importlib import import_module
from typing import Any

from horovod.tensorflow import (
    Adasum,
    Average,
    Compression,
    LocalGradientAggregationHelper,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    ccl_built,
    check_extension,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    handle_average_backwards_compatibility,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    reducescatter,
    refs_to_vars,
    remove_process_set,
    rocm_built,
    size,
    size_op,
    split_list,
    start_timeline,
    stop_timeline,
    vars_to_refs,
)

from hvd_dbs import data
from hvd_dbs.balancer import Balancer
from hvd_dbs.elastic.rendezvous import init
from hvd_dbs.job import observers
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce
from hvd_dbs.tensorflow import elastic
from hvd_dbs.tensorflow.distributed_optimizer import DistributedOptimizer
from hvd_dbs.tensorflow.global_batch import global_mean, global_sum
from hvd_dbs.tensorflow.gradient_tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from hvd_dbs.tensorflow.variables import broadcast_global_variables, broadcast_variables
from hvd_dbs.watchdog.exit_barrier import shutdown

__all__ = [
    "Adasum",
    "Average",
    "Balancer",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data",
    "ddl_built",
    "elastic",
    "global_mean",
    "global_process_set",
    "global_sum",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "observers",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
    "weighted_allreduce",
]


def __getattr__(name: str) -> Any:
    """Horovod's layer cannot be made with Keras 3; in its place stands the one for Keras 3."""
    if name == "SyncBatchNormalization":  # Only now: nothing else here needs Keras.
        return import_module("hvd_dbs.keras.layers").SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
