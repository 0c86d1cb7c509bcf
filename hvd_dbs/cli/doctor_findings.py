"""What `hvd-dbs doctor` concludes from what it sees; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hvd_dbs import keras_stack
from hvd_dbs.cli.doctor_facts import Facts
from hvd_dbs.keras_stack import numbers_of
from hvd_dbs.rank_names import name_ranks

NEEDED = {
    "Python": ("3.10", "make an environment with Python 3.10 to 3.13"),
    "NumPy": ("1.26", "pip install 'numpy>=1.26'"),
    "psutil": ("5.9", "pip install 'psutil>=5.9'"),
    "TensorFlow": (keras_stack.OLDEST_TENSORFLOW, keras_stack.INSTALL_TENSORFLOW),
    "Keras": (keras_stack.OLDEST_KERAS, keras_stack.INSTALL_KERAS),
    "Horovod": ("0.28.1", "compile it for the TensorFlow that is here, as scripts/setup.sh does"),
    "mpi4py": ("4", "with Horovod's mpicc on PATH: pip install --no-binary mpi4py 'mpi4py>=4'"),
}
"""The oldest version that is supported, and how to get one."""

Level = Literal["ok", "warning", "problem"]

_PIP = "pip install --no-build-isolation --force-reinstall --no-deps hvd_dbs"


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        level: "problem" where training cannot work, "warning" where it is worse than it could be.
        text: What was found, in one line.
        fix: What to do about it, in one line; empty for "ok".
    """

    level: Level
    text: str
    fix: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") != (not self.fix):
            raise ValueError(
                f"A finding of level {self.level!r} has fix={self.fix!r}. Say how to fix whatever "
                f"is not ok, and nothing else."
            )


def of_rank(facts: Facts) -> list[Finding]:
    """What is to be said of the packages, libraries and programs of one rank."""
    findings = [*_of_packages(facts), *_of_keras(facts)]
    if facts.can_connect:
        findings += [*_of_horovod(facts), *_of_native(facts), *_of_gpus(facts)]
    if facts.launch.kind != "gloo":
        findings += _of_mpi(facts)
    if not facts.launch.kind:
        findings += _of_launchers(facts)
    return findings


def of_job(facts: Sequence[Facts]) -> list[Finding]:
    """What is to be said of all ranks, from the facts of each."""
    return [*merge([of_rank(one) for one in facts]), *_of_versions(facts), *_of_hosts(facts)]


def _of_packages(facts: Facts) -> list[Finding]:
    fine, wrong = [f"hvd_dbs {facts.packages['hvd_dbs'].version}"], []
    for name, (least, way) in NEEDED.items():
        package = facts.packages[name]
        if package.is_usable and numbers_of(package.version) >= numbers_of(least):
            fine.append(f"{name} {package.version}")
        elif package.is_usable:
            text = f"{name} {package.version} is older than {least}"
            wrong.append(Finding("problem", text, way))
        elif package.error and not _is_blamed_elsewhere(name, facts):
            text = f"{f'{name} {package.version}'.strip()} cannot be imported: {package.error}"
            wrong.append(Finding("problem", text, way))
        elif not package.error and (name != "mpi4py" or _needs_mpi4py(facts)):
            wrong.append(Finding("problem", f"{name} is not installed", way))
    return [Finding("ok", ", ".join(fine)), *wrong]


def _is_blamed_elsewhere(name: str, facts: Facts) -> bool:
    """Whether a package cannot be imported because of something else that is found as well."""
    bases = {
        "TensorFlow": ["NumPy"],
        "Keras": ["NumPy", "TensorFlow"],
        "Horovod": ["NumPy", "psutil", "TensorFlow", "Keras"],
        "mpi4py": ["NumPy"],
    }.get(name, [])
    is_misled = any(keras_stack.problems_of_settings(facts.keras_stack))
    uses_keras = name in ("TensorFlow", "Keras", "Horovod")
    return not all(facts.packages[base].is_usable for base in bases) or (uses_keras and is_misled)


def _needs_mpi4py(facts: Facts) -> bool:
    return facts.launch.kind != "gloo" and "MPI" in (facts.horovod_parts or ("MPI",))


def _of_keras(facts: Facts) -> Iterator[Finding]:
    for problem in keras_stack.problems_of_settings(facts.keras_stack):
        is_fatal = problem.is_fatal or not facts.packages["Horovod"].is_usable
        yield Finding("problem" if is_fatal else "warning", problem.text, problem.fix)


def _of_horovod(facts: Facts) -> Iterator[Finding]:
    yield Finding("ok", f"Horovod was built with {', '.join(facts.horovod_parts)}")
    if "MPI" not in facts.horovod_parts and facts.launch.kind != "gloo":
        text = "Horovod was built without MPI: ranks that mpirun starts would train apart"
        fix = "start jobs by horovodrun --gloo, or compile Horovod with HOROVOD_WITH_MPI=1"
        yield Finding("problem" if facts.launch.kind else "warning", text, fix)


def _of_native(facts: Facts) -> Iterator[Finding]:
    mode = facts.variables.get("HVD_DBS_NATIVE", "auto")
    reason = facts.native_error.partition(". Build it")[0]
    if mode not in ("auto", "1", "0"):
        yield Finding("problem", reason, "unset HVD_DBS_NATIVE")
    elif mode == "0":
        yield Finding("ok", "native library: left out by HVD_DBS_NATIVE=0")
    elif reason and mode == "1":
        text = f"HVD_DBS_NATIVE=1 insists on the native library, but {reason}"
        yield Finding("problem", text, f"HVD_DBS_BUILD_OP=1 {_PIP}")
    elif reason:
        text = f"TensorFlow computes, slower, what the native library would: {reason}"
        yield Finding("warning", text, f"HVD_DBS_BUILD_OP=1 {_PIP}")
    else:
        kernels = "with" if facts.native_has_cuda else "without"
        yield Finding("ok", f"native library: loaded, {kernels} CUDA kernels")


def _of_gpus(facts: Facts) -> Iterator[Finding]:
    if facts.num_gpus:
        yield Finding("ok", f"GPUs that TensorFlow sees: {facts.num_gpus}")
        if "NCCL" not in facts.horovod_parts:
            text = "Horovod was built without NCCL: gradients of GPUs go through the host's memory"
            fix = "scripts/setup.sh --gpu, or compile Horovod with HOROVOD_GPU_OPERATIONS=NCCL"
            yield Finding("warning", text, fix)
        if not (facts.native_has_cuda or facts.native_error):
            text = "the native library does nothing for GPUs: it was built without CUDA"
            yield Finding("warning", text, f"HVD_DBS_CUDA=1 {_PIP}")
    elif facts.num_gpu_devices and "CUDA_VISIBLE_DEVICES" not in facts.variables:
        text = f"TensorFlow sees none of the {facts.num_gpu_devices} NVIDIA GPUs of this host"
        yield Finding(
            "warning", text, "scripts/setup.sh --gpu, or pip install 'tensorflow[and-cuda]'"
        )


def _of_mpi(facts: Facts) -> Iterator[Finding]:
    if len(facts.mpi_files) > 1:
        text = f"Horovod and mpi4py use two MPI libraries: {', '.join(facts.mpi_files)}"
        yield Finding("problem", text, NEEDED["mpi4py"][1])
    elif facts.mpi:
        yield Finding("ok", f"mpi4py uses {facts.mpi}")
    library, program = (numbers_of(text) for text in (facts.mpi, facts.mpirun))
    if "Open MPI" not in facts.mpi or "Open MPI" not in facts.mpirun:
        return
    if library != program:
        text = f"mpirun on PATH is {facts.mpirun}, but mpi4py uses {facts.mpi}"
        yield Finding("warning", text, "put the bin folder of the MPI of mpi4py first on PATH")
    if program >= (5,):
        text = f"horovodrun does not work with {facts.mpirun}: it gives options that are gone"
        yield Finding("warning", text, "use mpirun itself, horovodrun --gloo, or Open MPI 4.1")


def _of_launchers(facts: Facts) -> Iterator[Finding]:
    if not (facts.mpirun or facts.has_horovodrun):
        text = "neither mpirun nor horovodrun is on PATH: nothing starts a job of several ranks"
        yield Finding("warning", text, "activate the environment that Horovod is installed in")
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    is_allowed = all(facts.variables.get(name) == "1" for name in allowed)
    if facts.is_root and "Open MPI" in facts.mpirun and not is_allowed:
        text = "Open MPI's mpirun starts nothing for root"
        fix = f"mpirun --allow-run-as-root, or export {' '.join(f'{name}=1' for name in allowed)}"
        yield Finding("warning", text, fix)


def _of_versions(facts: Sequence[Facts]) -> Iterator[Finding]:
    for name in facts[0].packages:
        ranks: dict[str, list[int]] = {}
        for rank, one in enumerate(facts):
            ranks.setdefault(one.packages[name].version or "none", []).append(rank)
        if len(ranks) > 1:
            given = "; ".join(f"{version} on {name_ranks(of)}" for version, of in ranks.items())
            text = f"{name} is not the same on all ranks: {given}"
            # Only these two talk with each other.
            level: Level = "problem" if name in ("hvd_dbs", "Horovod") else "warning"
            yield Finding(level, text, f"install the same {name} on all hosts")


def _of_hosts(facts: Sequence[Facts]) -> Iterator[Finding]:
    hosts: dict[str, list[int]] = {}
    for rank, one in enumerate(facts):
        hosts.setdefault(one.host, []).append(rank)
    for host, ranks in hosts.items():
        # A rank on its own may have any number.
        names = f"{name_ranks(ranks)} on " if len(facts) > 1 else ""
        yield from _of_host(host, names, [facts[rank] for rank in ranks])


def _of_host(host: str, names: str, facts: Sequence[Facts]) -> Iterator[Finding]:
    cores = frozenset[int]().union(*(one.cores for one in facts))
    idle = frozenset[int]().union(*(one.launcher_cores for one in facts)) - cores
    # What ranks of one container have, they have together.
    quota = sum({one.container: one.quota for one in facts}.values())
    usable = min(len(cores), quota)
    limit = f" by the limit of a container, of {len(cores)}" if quota < len(cores) else ""
    yield Finding("ok", f"{host}: {names}{_cores(usable)}{limit}")
    # Open MPI binds by itself; what Slurm runs its processes from may have the whole host.
    if facts[0].launch.kind == "Open MPI" and idle and quota > len(cores):
        text = f"{host}: the ranks are bound to cores, and leave {_cores(len(idle))} idle"
        yield Finding("warning", text, "mpirun --bind-to none")
    num_threads = sum(_num_threads(one) for one in facts)
    if any(one.num_gpus for one in facts):
        return
    if len(facts) > max(usable, 1):
        text = f"{host}: {len(facts)} ranks have {_cores(usable)} together"
        yield Finding("warning", text, f"start no more than {max(1, int(usable))} of them there")
    elif num_threads > max(usable, len(facts)):
        each = max(1, int(usable) // len(facts))
        text = f"{host}: TensorFlow starts {num_threads} threads on {_cores(usable)}"
        fix = f"set TF_NUM_INTRAOP_THREADS={each} and OMP_NUM_THREADS={each} on all ranks"
        yield Finding("warning", text, fix)


def merge(findings: Sequence[Sequence[Finding]]) -> list[Finding]:
    """One finding where several ranks have the same; the ranks are named where not all have it.

    Args:
        findings: Of each rank, by rank.
    """
    ranks: dict[Finding, list[int]] = {}
    for rank, of_rank in enumerate(findings):
        for finding in of_rank:
            ranks.setdefault(finding, []).append(rank)
    return [
        finding
        if len(of) == len(findings)
        else replace(finding, text=f"{name_ranks(of)}: {finding.text}")
        for finding, of in ranks.items()
    ]


def _cores(number: float) -> str:
    return f"{number:g} core{'' if number == 1 else 's'}"


def _num_threads(facts: Facts) -> int:
    given = facts.variables.get("TF_NUM_INTRAOP_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else len(facts.cores)
