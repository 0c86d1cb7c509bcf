"""Builds the native library with CMake; everything else about the package is in pyproject.toml.

Environment:
    HVD_DBS_BUILD_OP: `1` builds it, and what is missing for that is an error. `0` leaves the
        package in pure Python, which computes the same, slower. `auto` builds it where that is
        possible. Unset: as `1` where this environment has TensorFlow, else as `0`.
    HVD_DBS_CUDA: `auto` (the default) adds kernels for NVIDIA GPUs where TensorFlow is built with
        CUDA and nvcc is found and works; the library then serves machines with and without a GPU.
        `1` adds them for any TensorFlow, and makes a missing or failing nvcc an error. `0` leaves
        them out.
    NVCC: The CUDA compiler, where it is neither on PATH nor in /usr/local/cuda.
    HVD_DBS_CMAKE_ARGS: More arguments for CMake, such as `-DCMAKE_CUDA_ARCHITECTURES=90`.
    CXX: The C++ compiler, as CMake understands it.

An isolated build (plain `pip install .`) does not see the TensorFlow that is installed, so the
library is built only with `pip install --no-build-isolation .`. pip hides the output of a build
that succeeds, so a package without the library has a file with the reason, absence.txt, which
hvd_dbs.ops.native reads.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
LIBRARY = "hvd_dbs.ops._native.libhvd_dbs_native"
ABSENCE = Path("hvd_dbs", "ops", "_native", "absence.txt")
NOT_ISOLATED = "pip install --no-build-isolation"


def find_tool(*names: str) -> str | None:
    """Returns the first of the programs that is beside this Python or on PATH.

    A program that pip installed is beside Python also where nobody activated the environment.
    """
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return next((tool for name in names if (tool := shutil.which(name, path=search_path))), None)


def missing_for_native_library() -> str | None:
    """Says what keeps the native library from being built and the way out, None if nothing does."""
    if importlib.util.find_spec("tensorflow") is None:
        if environment_has_tensorflow():
            return f"an isolated build does not see TensorFlow: {NOT_ISOLATED}"
        return f"no TensorFlow: install it, then hvd_dbs with {NOT_ISOLATED}"
    compiler = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    if find_tool(*compiler) is None:
        return f"no C++ compiler ({', '.join(compiler)}): sudo apt-get install g++"
    if find_tool("cmake") is None:
        return "no cmake: pip install cmake"
    return None


@functools.cache
def environment_has_tensorflow() -> bool:
    """Says whether the environment that pip installs into has TensorFlow.

    An isolated build has the Python of that environment, and hides its packages by PYTHONPATH.
    """
    if importlib.util.find_spec("tensorflow") is not None:
        return True
    question = "import importlib.util as u; raise SystemExit(u.find_spec('tensorflow') is None)"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", question]
    return subprocess.run(command, env=environment, cwd=os.sep, check=False).returncode == 0


def tensorflow_has_cuda() -> bool:
    """Says whether TensorFlow is built with CUDA, without its import, which takes seconds."""
    spec = importlib.util.find_spec("tensorflow")
    for folder in (spec and spec.submodule_search_locations) or []:
        build_info = Path(folder, "python", "platform", "build_info.py")
        if build_info.exists():
            return re.search(r"is_cuda_build\W+False", build_info.read_text()) is None
    return True


def cuda_compiler() -> str | None:
    """Returns the nvcc to build kernels for GPUs with, None where they are not to be built."""
    mode = os.environ.get("HVD_DBS_CUDA", "auto")
    if mode not in ("auto", "1", "0"):
        raise SystemExit(f"HVD_DBS_CUDA={mode!r} is unknown. Use auto, 1 or 0.")
    if mode == "0" or (mode == "auto" and not tensorflow_has_cuda()):
        return None
    if "NVCC" in os.environ:
        nvcc = find_tool(os.environ["NVCC"])
    else:
        nvcc = find_tool("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None and mode == "1":
        raise CompileError(
            "HVD_DBS_CUDA=1 but there is no nvcc: install the CUDA toolkit or set NVCC"
        )
    return nvcc


def build_mode() -> str:
    """Returns what HVD_DBS_BUILD_OP asks for: "auto", "1" or "0"."""
    default = "1" if environment_has_tensorflow() else "0"
    mode = os.environ.get("HVD_DBS_BUILD_OP", "") or default
    if mode not in ("auto", "1", "0"):
        raise SystemExit(f"HVD_DBS_BUILD_OP={mode!r} is unknown. Use auto, 1 or 0, or unset it.")
    return mode


def native_extensions() -> list[Extension]:
    """Returns the native library, or nothing where it is not wanted or cannot be built."""
    mode = build_mode()
    if mode == "0" or (mode == "auto" and missing_for_native_library() is not None):
        return []
    return [Extension(LIBRARY, sources=[], optional=mode == "auto")]


def reason_without_library() -> str:
    """Says why a package without extensions has no native library."""
    if os.environ.get("HVD_DBS_BUILD_OP") == "0":
        return "HVD_DBS_BUILD_OP=0"
    return missing_for_native_library() or "unknown"


class BuildPython(build_py):
    """Leaves word in the package of why it has no native library."""

    def run(self) -> None:
        """Builds the package in Python."""
        super().run()
        if not self.distribution.ext_modules:
            note_absence(
                ROOT if self.editable_mode else Path(self.build_lib), reason_without_library()
            )


def note_absence(folder: Path, reason: str) -> None:
    """Writes into a package why it has no native library."""
    print(f"hvd_dbs: installing without the native library: {reason}", file=sys.stderr)
    (folder / ABSENCE).parent.mkdir(parents=True, exist_ok=True)
    (folder / ABSENCE).write_text(f"{reason}\n")


class CMakeBuild(build_ext):
    """Lets CMake make the library instead of compiling a Python extension module."""

    def get_ext_filename(self, ext_name: str) -> str:
        """Returns a name without Python's version: nothing in the library depends on it."""
        return str(Path(*ext_name.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Configures, builds and copies the library to where setuptools expects it."""
        try:
            missing = missing_for_native_library()
            if missing is not None:
                raise CompileError(missing)
            build_folder = self.build_library()
        except (OSError, subprocess.CalledProcessError, CompileError) as error:
            if ext.optional:
                note_absence(ROOT if self.editable_mode else Path(self.build_lib), str(error))
            raise CompileError(
                f"hvd_dbs: cannot build the native library: {error}. HVD_DBS_BUILD_OP=0 installs "
                f"hvd_dbs without it, which computes the same, slower"
            ) from error
        destination = Path(self.get_ext_fullpath(ext.name))
        put_in_place(build_folder / destination.name, destination)

    def build_library(self) -> Path:
        """Returns the folder that CMake has built the library in."""
        # A build folder that is kept makes the next build compile only what changed. CMake refuses
        # one of another source folder, TensorFlow's headers change with its version, and where the
        # CUDA compiler changes CMake forgets all that it was given.
        nvcc = cuda_compiler()
        identity = f"{ROOT} {sys.prefix} {sys.version} {tensorflow_version()} {nvcc}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        build_folder = ROOT / "build" / f"native-{digest}"
        try:
            run_cmake(build_folder, nvcc)
        except (OSError, subprocess.CalledProcessError):
            if nvcc is None or os.environ.get("HVD_DBS_CUDA", "auto") == "1":
                raise
            # Often an nvcc that does not know the C++ compiler; a CPU's library is still worth it.
            print(f"hvd_dbs: {nvcc} fails; building without kernels for GPUs", file=sys.stderr)
            run_cmake(build_folder, None)
        return build_folder

    def copy_extensions_to_source(self) -> None:
        """Puts the built library into the source tree, for an editable install."""
        for ext in self.extensions:
            name = self.get_ext_filename(ext.name)
            built = Path(self.build_lib) / name
            if built.exists() or not ext.optional:
                put_in_place(built, ROOT / name)


def run_cmake(build_folder: Path, nvcc: str | None) -> None:
    """Configures and builds the native library in a folder."""
    cmake = find_tool("cmake") or "cmake"
    ninja = find_tool("ninja")
    configure = [cmake, "-S", str(ROOT), "-B", str(build_folder)]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DHVD_DBS_WITH_CUDA={'OFF' if nvcc is None else 'ON'}"]
    if nvcc is not None:
        configure += [f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    if ninja is not None:
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += shlex.split(os.environ.get("HVD_DBS_CMAKE_ARGS", ""))
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    subprocess.run(configure, check=True)
    subprocess.run([cmake, "--build", str(build_folder), "--parallel", jobs], check=True)


def put_in_place(source: Path, destination: Path) -> None:
    """Copies a file so that a process that has the old one mapped keeps it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
    shutil.copy2(source, temporary)
    temporary.replace(destination)


def tensorflow_version() -> str:
    """Returns the version of the installed TensorFlow, of whatever variant, without an import."""
    for distribution in importlib.metadata.packages_distributions().get("tensorflow", []):
        return importlib.metadata.version(distribution)
    return "unknown"


if __name__ == "__main__":
    setup(
        ext_modules=native_extensions(),
        cmdclass={"build_ext": CMakeBuild, "build_py": BuildPython},
    )
