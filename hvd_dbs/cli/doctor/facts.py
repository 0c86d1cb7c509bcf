"""What `hvd-dbs doctor` looks at where it runs; what that means is said in `findings`."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hvd_dbs
from hvd_dbs import keras_stack
from hvd_dbs.cli.doctor.launch import Launch
from hvd_dbs.host.cores import cpu_quota, num_cores
from hvd_dbs.host.device_kind import device_kind
from hvd_dbs.keras_stack import KerasStack

NATIVE = "the native library"
NATIVE_INTERFACE = "the native library's interface"

_MODULES = {
    "NumPy": "numpy",
    "psutil": "psutil",
    "TensorFlow": "tensorflow",
    "Keras": "keras",
    "Horovod": "horovod.tensorflow",
    "mpi4py": "mpi4py",
}
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HVD_DBS_NATIVE",
    "KERAS_BACKEND",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "TF_NUM_INTRAOP_THREADS",
    "TF_USE_LEGACY_KERAS",
)
_LIBMPI = re.compile(r"/\S*/libmpi(?:ch)?\.so\S*")


@dataclass(frozen=True)
class Package:
    """What is known of a Python package.

    Attributes:
        version: Its version; empty where it is not installed, or does not say.
        error: Why it cannot be imported; empty where it can, or is not installed.
    """

    version: str
    error: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether it can be imported."""
        return bool(self.version) and not self.error


@dataclass(frozen=True)
class Facts:
    """What a rank has and may use.

    Attributes:
        packages: By name, hvd_dbs and Python among them.
        launch: How this process was started.
        variables: Environment variables that matter, where they are set.
        keras_stack: What decides which Keras is imported.
        horovod_parts: What Horovod was built with, of "MPI", "Gloo" and "NCCL".
        mpi: What mpi4py's MPI library calls itself.
        mpi_files: The MPI libraries that are loaded into this process.
        mpirun: The first line of `mpirun --version`; empty where none is on PATH.
        has_horovodrun: Whether horovodrun is on PATH.
        native: What the native library was built for; empty where there is none.
        native_interface: The interface that it must have.
        native_error: Why the native library is not used.
        native_has_cuda: Whether it has kernels for GPUs.
        device: The kind of device that bounds by kind and profiles know it by.
        num_gpus: GPUs that TensorFlow sees.
        num_gpu_devices: NVIDIA GPUs that the system has a device file for.
        is_root: Whether this is root's process.
        host: Name of the host.
        cores: Cores that this process may run on.
        launcher_cores: Cores that what has started it may run on.
        quota: Cores' worth of time that its container leaves it; infinity without a limit.
        container: What processes in the same container have alike.
    """

    packages: Mapping[str, Package]
    launch: Launch = field(default_factory=Launch)
    variables: Mapping[str, str] = field(default_factory=dict)
    keras_stack: KerasStack = field(default_factory=KerasStack)
    horovod_parts: tuple[str, ...] = ()
    mpi: str = ""
    mpi_files: tuple[str, ...] = ()
    mpirun: str = ""
    has_horovodrun: bool = False
    native: str = ""
    native_interface: str = ""
    native_error: str = ""
    native_has_cuda: bool = False
    device: str = ""
    num_gpus: int = 0
    num_gpu_devices: int = 0
    is_root: bool = False
    host: str = ""
    cores: frozenset[int] = frozenset({0})
    launcher_cores: frozenset[int] = frozenset({0})
    quota: float = math.inf
    container: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """What the hosts of a job should have alike, by name."""
        versions = {name: one.version or "none" for name, one in self.packages.items()}
        return {
            **versions,
            NATIVE: self.native or "none",
            NATIVE_INTERFACE: self.native_interface,
        }

    @property
    def can_connect(self) -> bool:
        """Whether Horovod can be started."""
        return self.packages["TensorFlow"].is_usable and self.packages["Horovod"].is_usable


def look() -> Facts:
    """Looks at this process and its host; whatever is missing or broken there is no error."""
    packages = {name: _package(module) for name, module in _MODULES.items()}
    has = {name: package.is_usable for name, package in packages.items()}
    mpi = ""
    if has["mpi4py"]:
        # Horovod initializes MPI, and mpi4py joins in.
        sys.modules["mpi4py"].rc.initialize = sys.modules["mpi4py"].rc.finalize = False
        packages["mpi4py"] = _package("mpi4py.MPI")
        if packages["mpi4py"].is_usable:
            # "Open MPI v4.1.8, package: ..."
            library: str = sys.modules["mpi4py.MPI"].Get_library_version()
            mpi = re.split(r"[,\n\0]", library)[0].strip()
    tensorflow: Any = sys.modules["tensorflow"] if has["TensorFlow"] else None
    return Facts(
        packages={
            "hvd_dbs": Package(hvd_dbs.__version__),
            "Python": Package(platform.python_version()),
            **packages,
        },
        launch=Launch.of(os.environ),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        keras_stack=keras_stack.look(),
        horovod_parts=_horovod_parts() if has["Horovod"] else (),
        mpi=mpi,
        mpi_files=tuple(sorted(set(_LIBMPI.findall(_text("/proc/self/maps"))))),
        mpirun=_mpirun_version(),
        has_horovodrun=shutil.which("horovodrun") is not None,
        **(_native() if has["Horovod"] else {}),
        device=device_kind() if tensorflow else "",
        num_gpus=len(tensorflow.config.list_physical_devices("GPU")) if tensorflow else 0,
        num_gpu_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        is_root=os.geteuid() == 0,
        host=socket.gethostname(),
        cores=_cores_of(0),
        launcher_cores=_cores_of(os.getppid()),
        quota=cpu_quota(),
        container=_text("/proc/self/cgroup"),
    )


def _package(module: str) -> Package:
    name = module.partition(".")[0]
    if importlib.util.find_spec(name) is None:
        return Package("")
    error = ""
    try:
        importlib.import_module(module)
    except Exception as caught:  # Whatever a broken installation can do.
        error = f"{type(caught).__name__}: {caught}".strip().splitlines()[0][:200]
    return Package(str(getattr(sys.modules.get(name), "__version__", "")), error)


def _horovod_parts() -> tuple[str, ...]:
    hvd: Any = sys.modules["horovod.tensorflow"]
    built = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    return tuple(name for name, is_built in built.items() if is_built)


def _native() -> dict[str, Any]:
    from hvd_dbs.ops import native

    facts = {"native": native.description(), "native_interface": native.INTERFACE}
    try:
        library = native.loaded()
    except ValueError as error:
        return {**facts, "native_error": str(error)}
    has_cuda = library is not None and library.has_cuda
    return {**facts, "native_error": native.reason_for_absence(), "native_has_cuda": has_cuda}


def _mpirun_version() -> str:
    path = shutil.which("mpirun")
    if path is None:
        return ""
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path}: {error}"
    return answer.stdout.strip().partition("\n")[0] or path


def _cores_of(process: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(process))
    except (AttributeError, OSError):
        return frozenset(range(num_cores()))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
