"""What `hvd-dbs doctor` concludes from what a rank sees; pure."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_dbs import keras_stack
from hvd_dbs.cli.doctor.facts import Facts
from hvd_dbs.cli.doctor.finding import Finding
from hvd_dbs.keras_stack import numbers_of

_OLDEST_NUMPY = keras_stack.TESTED["NumPy"][0]
NEEDED = {
    "Python": ("3.10", "make an environment with Python 3.10 to 3.13"),
    "NumPy": (_OLDEST_NUMPY, f"pip install 'numpy>={_OLDEST_NUMPY}'"),
    "psutil": ("5.9", "pip install 'psutil>=5.9'"),
    "TensorFlow": (keras_stack.OLDEST_TENSORFLOW, keras_stack.INSTALL_TENSORFLOW),
    "Keras": (keras_stack.OLDEST_KERAS, keras_stack.INSTALL_KERAS),
    "Horovod": ("0.28.1", "compile it for the TensorFlow that is here, as scripts/setup.sh does"),
    "mpi4py": ("4", "with Horovod's mpicc on PATH: pip install --no-binary mpi4py 'mpi4py>=4'"),
}
"""The oldest version that is supported, and how to get one."""

_PIP = "pip install --no-build-isolation --force-reinstall --no-deps ."
_IN_SOURCE = "in the folder of hvd_dbs's source:"


def of_rank(facts: Facts) -> list[Finding]:
    """What is to be said of the packages, libraries and programs of one rank."""
    findings = [*_of_packages(facts), *_of_keras(facts)]
    if facts.can_connect:
        findings += [*_of_horovod(facts), *_of_native(facts), *_of_gpus(facts)]
    if facts.launch.kind != "gloo":
        findings += _of_mpi(facts)
    if facts.launch.num_apart:
        findings.append(_of_tasks(facts))
    elif not facts.launch.kind:
        findings += _of_launchers(facts)
    return findings


def _of_packages(facts: Facts) -> list[Finding]:
    fine, wrong = [f"hvd_dbs {facts.packages['hvd_dbs'].version}"], []
    for name, (least, way) in NEEDED.items():
        package = facts.packages[name]
        if package.is_usable and numbers_of(package.version) >= numbers_of(least):
            if name in keras_stack.TESTED and not keras_stack.is_tested(name, package.version):
                wrong.append(_untested(name, package.version))
            else:
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


def _untested(name: str, version: str) -> Finding:
    tested = keras_stack.TESTED[name]
    text = f"no test ran on {name} {version}; tested are {', '.join(tested)}"
    newest = keras_stack.TESTED["TensorFlow"][-1]
    fix = (
        f"scripts/setup.sh --tensorflow {newest} installs a tested pair of TensorFlow and NumPy; "
        f"or run hvd-dbs verify, and scripts/test.sh, on this one"
    )
    return Finding("warning", text, fix)


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
        yield Finding("problem", text, f"{_IN_SOURCE} HVD_DBS_BUILD_OP=1 {_PIP}")
    elif reason:
        text = f"TensorFlow computes, slower, what the native library would: {reason}"
        yield Finding("warning", text, f"{_IN_SOURCE} HVD_DBS_BUILD_OP=1 {_PIP}")
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
            yield Finding("warning", text, f"{_IN_SOURCE} HVD_DBS_CUDA=1 {_PIP}")
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


def _of_tasks(facts: Facts) -> Finding:
    text = (
        f"srun has started {facts.launch.num_apart} processes that know nothing of each other: "
        f"each would be rank 0 of 1 and train alone, or end with an error of MPI"
    )
    fix = "srun --mpi=pmix, or mpirun within salloc or sbatch; srun --mpi=list shows what there is"
    return Finding("problem", text, fix)


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
