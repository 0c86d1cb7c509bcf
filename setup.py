"""Builds the native library with CMake; everything else about the package is in pyproject.toml.

Environment:
    HVD_DBS_BUILD_OP: `auto` (the default) builds it where that is possible and otherwise leaves the
        package in pure Python, which computes the same, slower. `1` makes a missing compiler or
        TensorFlow an error. `0` builds nothing.
    HVD_DBS_CUDA: `auto` (the default) adds kernels for NVIDIA GPUs where nvcc is found and works;
        the library then serves machines with and without a GPU. `1` makes a missing or failing
        nvcc an error. `0` leaves them out.
    NVCC: The CUDA compiler, where it is neither on PATH nor in /usr/local/cuda.
    HVD_DBS_CMAKE_ARGS: More arguments for CMake, such as `-DCMAKE_CUDA_ARCHITECTURES=90`.
    CXX: The C++ compiler, as CMake understands it.

An isolated build (plain `pip install .`) does not see the TensorFlow that is installed, so the
library is built only with `pip install --no-build-isolation .`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
LIBRARY = "hvd_dbs.ops._native.libhvd_dbs_native"


def find_tool(*names: str) -> str | None:
    """Returns the first of the programs that is beside this Python or on PATH.

    A program that pip installed is beside Python also where nobody activated the environment.
    """
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return next((tool for name in names if (tool := shutil.which(name, path=search_path))), None)


def missing_for_native_library() -> str | None:
    """Says what keeps the native library from being built and the way out, None if nothing does."""
    compiler = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    if find_tool(*compiler) is None:
        return f"no C++ compiler ({', '.join(compiler)}): sudo apt-get install g++"
    if find_tool("cmake") is None:
        return "no cmake: pip install cmake"
    if importlib.util.find_spec("tensorflow") is None:
        return "no TensorFlow: install it, then hvd_dbs with pip install --no-build-isolation"
    return None


def cuda_compiler() -> str | None:
    """Returns the nvcc to build kernels for GPUs with, None where they are not to be built."""
    mode = os.environ.get("HVD_DBS_CUDA", "auto")
    if mode not in ("auto", "1", "0"):
        raise SystemExit(f"HVD_DBS_CUDA={mode!r} is unknown. Use auto, 1 or 0.")
    if mode == "0":
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


def native_extensions() -> list[Extension]:
    """Returns the native library, or nothing where it is not wanted or cannot be built."""
    mode = os.environ.get("HVD_DBS_BUILD_OP", "auto")
    if mode not in ("auto", "1", "0"):
        raise SystemExit(f"HVD_DBS_BUILD_OP={mode!r} is unknown. Use auto, 1 or 0.")
    if mode == "0":
        return []
    missing = missing_for_native_library()
    if missing is not None:
        if mode == "1":
            raise SystemExit(f"hvd_dbs: cannot build the native library: {missing}")
        print(f"hvd_dbs: installing in pure Python: {missing}", file=sys.stderr)
        return []
    return [Extension(LIBRARY, sources=[], optional=mode == "auto")]


class CMakeBuild(build_ext):
    """Lets CMake make the library instead of compiling a Python extension module."""

    def get_ext_filename(self, ext_name: str) -> str:
        """Returns a name without Python's version: nothing in the library depends on it."""
        return str(Path(*ext_name.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Configures, builds and copies the library to where setuptools expects it."""
        # A build folder that is kept makes the next build compile only what changed. CMake refuses
        # one of another source folder, and TensorFlow's headers change with its version.
        identity = f"{ROOT} {sys.prefix} {sys.version} {tensorflow_version()}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        build_folder = ROOT / "build" / f"native-{digest}"
        nvcc = cuda_compiler()
        try:
            run_cmake(build_folder, nvcc)
        except (OSError, subprocess.CalledProcessError) as error:
            way_out = "HVD_DBS_BUILD_OP=0 installs hvd_dbs without it"
            failed = CompileError(f"cannot build the native library ({way_out}): {error}")
            if nvcc is None or os.environ.get("HVD_DBS_CUDA", "auto") == "1":
                raise failed from error
            # Often an nvcc that does not know the C++ compiler; a CPU's library is still worth it.
            print(f"hvd_dbs: {nvcc} fails; building without kernels for GPUs", file=sys.stderr)
            try:
                run_cmake(build_folder, None)
            except (OSError, subprocess.CalledProcessError):
                raise failed from error

        destination = Path(self.get_ext_fullpath(ext.name))
        put_in_place(build_folder / destination.name, destination)

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


setup(ext_modules=native_extensions(), cmdclass={"build_ext": CMakeBuild})
