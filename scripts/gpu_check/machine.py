"""What is on the machine that is checked."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

_QUERY = "name,driver_version,memory.total,compute_cap"


@dataclass(frozen=True)
class Machine:
    """What is there.

    Attributes:
        gpus: Of each GPU that TensorFlow sees, its name and compute capability.
        versions: Of software, by name; of the driver, a line for each GPU.
        has_nccl: Whether Horovod sums by NCCL.
    """

    gpus: list[str]
    versions: dict[str, str]
    has_nccl: bool


def look(*, hide_gpus: bool) -> Machine:
    """Looks at this machine; takes no memory of its GPUs.

    Args:
        hide_gpus: Whether TensorFlow is not to see any.
    """
    if hide_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from hvd_dbs.cli.doctor.facts import look as look_at_rank
    from hvd_dbs.ops import native

    facts = look_at_rank()
    build = tf.sysconfig.get_build_info()
    versions = {name: package.version for name, package in facts.packages.items()}
    versions |= {
        "native library": native.description(),
        "CUDA of TensorFlow": str(build.get("cuda_version", "none")),
        "cuDNN of TensorFlow": str(build.get("cudnn_version", "none")),
        "Horovod's parts": ", ".join(facts.horovod_parts),
        "MPI": facts.mpi,
        "driver": _driver(),
    }
    gpus = []
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        major, minor = details.get("compute_capability", (0, 0))
        gpus.append(f"{details.get('device_name', 'GPU')}, {major}.{minor}")
    return Machine(gpus, versions, bool(hvd.nccl_built()))


def _driver() -> str:
    words = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return answer.stdout.strip() or "none"
