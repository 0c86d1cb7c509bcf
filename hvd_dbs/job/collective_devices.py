"""Where the collective operations of each rank run; not all ranks can join those of all others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.comm.agreement import allgather_json
from hvd_dbs.comm.collective import Collective
from hvd_dbs.host.gpu_address import gpu_address
from hvd_dbs.rank_names import name_places, name_ranks

_WAY_OUT = (
    "use a Horovod that is built without GPU operations, on all hosts: models then compute on GPUs "
    "and collective operations run on CPUs (docs/gpus.md)."
)


@dataclass(frozen=True)
class CollectiveDevice:
    """Where a rank's collective operations run.

    Attributes:
        host: Name of its host.
        on_gpu: Whether on its GPU, since Horovod is built for it, else on the CPU.
        has_gpu: Whether it computes on a GPU at all.
        exclusive_gpu: Address of the GPU that no other rank may use; empty: there is none.
        boot: What tells machines apart that have the same name, as clones have.
    """

    host: str
    on_gpu: bool = False
    has_gpu: bool = False
    exclusive_gpu: str = ""
    boot: str = ""


def own_device(host: str) -> CollectiveDevice:
    """This process's.

    Args:
        host: Name of its host.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus or not hvd.cuda_built():
        return CollectiveDevice(host, has_gpu=bool(gpus))
    # Newer versions of NCCL try to let ranks share a GPU where they are asked to.
    may_share = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0" or not hvd.nccl_built()
    number = int(gpus[0].name.rpartition(":")[2])
    address = "" if may_share else gpu_address(number)
    return CollectiveDevice(host, True, True, address, _boot() if address else "")


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def require_joinable(ranks: Sequence[CollectiveDevice]) -> None:
    """Checks that each rank's collective operations can be joined by those of all others.

    Args:
        ranks: By rank.

    Raises:
        RuntimeError: If some run on GPUs and some on CPUs, or ranks of NCCL share a GPU.
    """
    hosts = [one.host for one in ranks]
    on_gpu = [rank for rank, one in enumerate(ranks) if one.on_gpu]
    on_cpu = [rank for rank, one in enumerate(ranks) if not one.on_gpu]
    if on_gpu and on_cpu:
        why = "no GPU"
        if any(ranks[rank].has_gpu for rank in on_cpu):
            why += ", or a Horovod without GPU operations"
        raise RuntimeError(
            f"Collective operations run on GPUs on {name_places(on_gpu, hosts)}, and on CPUs on "
            f"{name_places(on_cpu, hosts)} ({why}); Horovod joins no such operations. Hide all "
            f'GPUs (tf.config.set_visible_devices([], "GPU")), or {_WAY_OUT}'
        )
    users: dict[tuple[str, str, str], list[int]] = {}
    for rank, one in enumerate(ranks):
        if one.exclusive_gpu:
            users.setdefault((one.host, one.boot, one.exclusive_gpu), []).append(rank)
    for (host, _, address), sharing in users.items():
        if len(sharing) > 1:
            raise RuntimeError(
                f"On {host}, {name_ranks(sharing)} share the GPU {address}; NCCL takes one rank "
                f"for a GPU, also of slices (MIG). Give each rank its own GPU before the balancer "
                f'is made (tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")), or '
                f"{_WAY_OUT}"
            )


def require_joinable_collectives(collective: Collective, host: str) -> None:
    """Checks `require_joinable` of the ranks of a job. Collective.

    Args:
        collective: The job.
        host: Name of this rank's host.

    Raises:
        RuntimeError: On all ranks; see `require_joinable`.
    """
    devices = allgather_json(collective, asdict(own_device(host)))
    require_joinable([CollectiveDevice(**device) for device in devices])
