"""The native library: whether it is there, fits, and is there on all ranks.

It makes the step faster and changes no result; without it everything is computed by TensorFlow.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

import hvd_dbs

_LOGGER = logging.getLogger(__name__)

_LIBRARY = Path(__file__).parent / "_native" / "libhvd_dbs_native.so"
_ABSENCE = "absence.txt"  # Beside it, written by setup.py.
_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."
"""In the folder of its source: there is no index that has it."""
_IDENTITY = re.compile(
    rb"hvd_dbs-native version=(\S*) tensorflow=(\S*) cuda=([^\s;]*)(?: interface=(\d+))?;"
)
# As in cc/ops/identity.cc. An editable install can meet a library from before the last update.
INTERFACE = "4"
"""Number of the interface of its operations and functions, which the library has to have."""
NO_CLOCK = -1
"""No step clock has this number."""
_MODES = ("auto", "1", "0")


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library.

    Attributes:
        ops: Its TensorFlow operations.
        functions: Its C functions.
        clock_functions: Those of step clocks, too short to let go of Python's lock: who gets it
            may keep it for milliseconds. One that waits for a GPU lets go of it.
        has_cuda: Whether it has kernels for GPUs.
    """

    ops: Any
    functions: ctypes.CDLL
    clock_functions: ctypes.PyDLL
    has_cuda: bool


def mode() -> str:
    """What the user wants, from `HVD_DBS_NATIVE`: "auto", "1" (insist on it) or "0" (leave it).

    Raises:
        ValueError: If it is something else.
    """
    given = os.environ.get("HVD_DBS_NATIVE", "auto")
    if given not in _MODES:
        raise ValueError(
            f"HVD_DBS_NATIVE={given!r} is unknown. Use auto (the native library where all ranks "
            f"have it), 1 (an error where one lacks it) or 0 (TensorFlow's own operations)."
        )
    return given


def loaded() -> NativeLibrary | None:
    """The native library, or None where it cannot or shall not be used in this process."""
    return _load(_LIBRARY)[0] if mode() != "0" else None


def reason_for_absence() -> str:
    """Why `loaded()` is None, with the way out; an empty text if it is not."""
    return _load(_LIBRARY)[1] if mode() != "0" else "HVD_DBS_NATIVE=0 says to leave it."


def description() -> str:
    """What the library that is installed was built for, whether it fits or not; empty: none is."""
    identity = _identity(_LIBRARY)
    if identity is None:
        return ""
    version, tensorflow, cuda, interface = identity
    kernels = "with" if cuda == "yes" else "without"
    return f"of hvd_dbs {version}, TensorFlow {tensorflow}, interface {interface}, {kernels} CUDA"


def misfit(identity: Sequence[str], package: str, tensorflow: str) -> str:
    """Why a library does not fit; an empty text if it does.

    Args:
        identity: Versions of hvd_dbs and of TensorFlow that the library was built from, and the
            number of the interface of its operations and functions.
        package: Version of hvd_dbs.
        tensorflow: Version of TensorFlow.
    """
    names = ("hvd_dbs", "TensorFlow", "native interface")
    for name, built, running in zip(names, identity, (package, tensorflow, INTERFACE), strict=True):
        if built != running:
            return (
                f"it was built from {name} {built} and this is {name} {running}. "
                f"Build it again, in the folder of its source: {_REBUILD}"
            )
    return ""


def reason_of_build(absence: Path) -> str:
    """Why the library was not built when hvd_dbs was installed, with the way out.

    Args:
        absence: The file in which setup.py leaves the reason.
    """
    try:
        reason = absence.read_text().strip()
    except OSError:
        reason = "for an unknown reason"
    way = f"Build it, in the folder of its source: HVD_DBS_BUILD_OP=1 {_REBUILD}"
    return f"hvd_dbs was installed without it: {reason}. {way}"


@functools.cache
def _load(path: Path) -> tuple[NativeLibrary | None, str]:
    if not path.exists():
        return None, reason_of_build(path.with_name(_ABSENCE))
    identity = _identity(path)
    if identity is None:
        return None, f"{path} does not say what it was built for."
    package, tensorflow, cuda, interface = identity
    reason = misfit((package, tensorflow, interface), hvd_dbs.__version__, tf.__version__)
    if reason:
        return None, reason
    try:
        ops = tf.load_op_library(str(path))
        has_cuda = cuda == "yes"
        clock_functions = _clock_functions(path, has_cuda=has_cuda)
        return NativeLibrary(ops, _functions(path), clock_functions, has_cuda), ""
    except (tf.errors.OpError, OSError, AttributeError) as error:
        return None, f"it cannot be loaded: {error}"


def _identity(path: Path) -> tuple[str, str, str, str] | None:
    """Versions of hvd_dbs and TensorFlow, whether it has CUDA, and the number of its interface."""
    try:
        # Read, not loaded: static objects of a library for another TensorFlow can end the process.
        found = _IDENTITY.search(path.read_bytes())
    except OSError:
        return None
    if found is None:
        return None
    # Libraries without a number are older than it.
    package, tensorflow, cuda, interface = (part.decode() for part in found.groups(b"1"))
    return package, tensorflow, cuda, interface


def _functions(path: Path) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(path), use_errno=True)
    functions.hvd_dbs_scan_records.restype = ctypes.c_int64
    functions.hvd_dbs_scan_records.argtypes = [
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_int32),
    ]
    return functions


def _clock_functions(path: Path, *, has_cuda: bool) -> ctypes.PyDLL:
    functions = ctypes.PyDLL(str(path))
    waiting = ctypes.CDLL(str(path)) if has_cuda else functions
    rows = [ctypes.POINTER(ctypes.c_double), ctypes.c_int64]
    for name, result, arguments in (
        ("new", ctypes.c_int64, []),
        ("delete", None, []),
        ("restart", None, []),
        ("ask", None, []),
        ("exclude", None, [ctypes.c_double]),
        ("begin_step", None, [ctypes.c_int64]),
        ("send_signal", None, [ctypes.c_bool]),
        ("take_signal", ctypes.c_bool, []),
        ("waits_for_others", ctypes.c_bool, []),
        ("drain", ctypes.c_int64, rows),
        ("peek", ctypes.c_int64, rows),
    ):
        library = waiting if name == "take_signal" else functions
        function = getattr(library, f"hvd_dbs_step_clock_{name}")
        # The first number is the clock's; of a new one, how many steps it keeps.
        function.restype, function.argtypes = result, [ctypes.c_int64, *arguments]
        setattr(functions, f"hvd_dbs_step_clock_{name}", function)
    return functions


def agreed(process_set: hvd.ProcessSet = hvd.global_process_set) -> NativeLibrary | None:
    """The native library if all ranks have it, else None on all of them.

    Collective at the first call for a set of ranks, and remembered after that.

    Raises:
        RuntimeError: On all ranks, if one insists on the library and one lacks it.
    """
    return _agree(process_set, tuple(process_set.ranks or range(hvd.size())))


def forget_agreement() -> None:
    """Lets the ranks agree anew, for a job whose ranks have changed. On all ranks."""
    _agree.cache_clear()


@functools.cache
def _agree(process_set: hvd.ProcessSet, ranks: tuple[int, ...]) -> NativeLibrary | None:
    mine = loaded()
    flags = [[int(mine is not None), int(mode() == "1"), int(mode() == "0")]]
    if len(ranks) > 1:
        # Eagerly also while a graph is traced: the answer decides what is traced.
        with tf.init_scope(), tf.device("CPU"):
            flags = hvd.allgather(
                tf.constant(flags, tf.uint8),
                name=f"hvd_dbs.native.agreement.{process_set.process_set_id}",
                process_set=process_set,
            ).numpy()
    lacking = [rank for rank, (has, _, _) in zip(ranks, flags, strict=True) if not has]
    if not lacking:
        return mine
    named = f"rank{'s' * (len(lacking) > 1)} {', '.join(str(rank) for rank in lacking[:8])}"
    named += ", ..." if len(lacking) > 8 else ""
    why = reason_for_absence()
    if any(insists for _, insists, _ in flags):
        raise RuntimeError(
            f"HVD_DBS_NATIVE=1 insists on the native library, which {named} cannot use. {why} "
            f"HVD_DBS_NATIVE=auto goes on without it."
        )
    wanted = not all(unwanted for _, _, unwanted in flags)
    if wanted and hvd.rank() == ranks[0]:
        _LOGGER.warning(
            "The native library is not used, since %s cannot use it; TensorFlow computes the same, "
            "slower. %s",
            named,
            why,
        )
    return None
