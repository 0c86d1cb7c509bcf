"""Runs a Python program on ranks that Spark starts.

    spark-submit --master local[4] examples/on_spark.py 4 examples/keras_digits.py --epochs 2
    spark-submit --master spark://node1:7077 examples/on_spark.py 4 $(which hvd-dbs) doctor

The program must lie at the same path on all hosts.
"""

from __future__ import annotations

import os
import runpy
import sys

import horovod.spark
from pyspark.sql import SparkSession


def run_program(words: list[str]) -> int:
    """Runs a Python program in this process, as a rank; its exit code."""
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:  # Spark would run the task again.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> int:
    """Runs it on all ranks; the largest exit code."""
    num_ranks, program, *arguments = sys.argv[1:]
    session = SparkSession.builder.appName(os.path.basename(program)).getOrCreate()
    words = [os.path.abspath(program), *arguments]
    try:
        return max(horovod.spark.run(run_program, (words,), num_proc=int(num_ranks), use_gloo=True))
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
