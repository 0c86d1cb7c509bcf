"""Runs a Python program on ranks that Ray starts.

    python examples/on_ray.py 4 examples/keras_digits.py --epochs 2
    python examples/on_ray.py 4 $(which hvd-dbs) doctor
    python examples/on_ray.py --interface eth0 2-4 examples/keras_elastic.py      # elastic

It joins the Ray cluster that this host belongs to, or starts one on this host alone. The program
must lie at the same path on all hosts.
"""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(description="Runs a Python program on ranks that Ray starts.")
    parser.add_argument("--interface", help="network interface of all hosts; elastic jobs need it")
    parser.add_argument("ranks", help="how many, such as 4, or 2-4 for an elastic job")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a Python file and its arguments")
    given = parser.parse_args()
    least, _, most = given.ranks.partition("-")
    ray.init()
    settings = RayExecutor.create_settings(
        timeout_s=120, nics={given.interface} if given.interface else None
    )
    if most:
        executor = RayExecutor(settings, min_workers=int(least), max_workers=int(most))
    else:
        executor = RayExecutor(settings, num_workers=int(least))
    executor.start()
    words = [os.path.abspath(given.program[0]), *given.program[1:]]
    codes = executor.run(run_program, args=[words])
    executor.shutdown()
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
