"""Runs a Python program on ranks that Ray starts.

    python examples/on_ray.py 4 examples/keras_digits.py --epochs 2
    python examples/on_ray.py 4 $(which hvd-dbs) doctor

It joins the Ray cluster that this host belongs to, or starts one on this host alone. The program
must lie at the same path on all hosts.
"""

from __future__ import annotations

import os
import runpy
import sys

import ray
from horovod.ray import RayExecutor


def run_program(words: list[str]) -> int:
    """Runs a Python program in this process, as a rank; its exit code."""
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:  # It would end Ray's worker without a result.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> int:
    """Runs it on all ranks; the largest exit code."""
    num_ranks, program, *arguments = sys.argv[1:]
    ray.init()
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=int(num_ranks))
    executor.start()
    try:
        return max(executor.run(run_program, args=[[os.path.abspath(program), *arguments]]))
    finally:
        executor.shutdown()


if __name__ == "__main__":
    sys.exit(main())
