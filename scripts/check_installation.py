#!/usr/bin/env python3
"""Fails unless Horovod, mpi4py and the native library work together here; any number of ranks.

scripts/setup.sh runs it, so that a broken installation is found there and not in a training.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from mpi4py import rc

import hvd_dbs

# Horovod starts and ends MPI; mpi4py joins in.
rc.initialize = False
rc.finalize = False
hvd.init()

from mpi4py import MPI  # noqa: E402

rank, size = hvd.rank(), hvd.size()
expected = size * (size + 1) / 2
reduced = float(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum))
summed = np.zeros(1)
MPI.COMM_WORLD.Dup().Allreduce(np.array([rank + 1.0]), summed)
if (reduced, summed[0]) != (expected, expected):
    raise SystemExit(
        f"rank {rank}: sums {reduced} (Horovod), {summed[0]} (mpi4py) are not {expected}"
    )
if (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) != (rank, size):
    raise SystemExit(
        f"rank {rank}: Horovod and mpi4py do not agree on who is who; are there two MPIs?"
    )

library = Path(hvd_dbs.__file__).parent / "ops" / "_native" / "libhvd_dbs_native.so"
native = "none"
if library.exists():
    version = ctypes.CDLL(str(library)).hvd_dbs_native_version
    version.restype = ctypes.c_char_p
    native = version().decode()
    if native != hvd_dbs.__version__:
        raise SystemExit(f"{library} is of version {native}, hvd_dbs of {hvd_dbs.__version__}")
print(f"rank {rank} of {size}: Horovod and mpi4py work; native library: {native}\n", end="")
