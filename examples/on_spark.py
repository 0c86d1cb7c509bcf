"""Runs a Python program on ranks that Spark starts.

    spark-submit --master local[4] examples/on_spark.py 4 examples/keras_digits.py --epochs 2
    spark-submit --master spark://node1:7077 examples/on_spark.py 4 $(which hvd-dbs) doctor
    spark-submit --master local[4] examples/on_spark.py 2-4 examples/keras_elastic.py   # elastic

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
    except SystemExit as end:  # It would end the rank without a result.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> int:
    """Runs it on all ranks; the largest exit code."""
    ranks, program, *arguments = sys.argv[1:]
    least, _, most = ranks.partition("-")
    words = [os.path.abspath(program), *arguments]
    session = SparkSession.builder.appName(os.path.basename(program)).getOrCreate()
    # Without these, what ranks print stays in the executors' own files.
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    try:
        if most:
            limits = {"min_num_proc": int(least), "max_num_proc": int(most)}
            codes = horovod.spark.run_elastic(
                run_program, (words,), num_proc=int(least), **limits, **streams
            )
        else:
            codes = horovod.spark.run(
                run_program, (words,), num_proc=int(least), use_gloo=True, **streams
            )
        return max(codes)
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
