"""`hvd-dbs verify` as users start it. What it finds is tested on ranks of a job, in tests/mpi."""

from __future__ import annotations

import pytest

from tests.jobs import horovodrun, mpirun, python, run_job

VERIFY = ["hvd-dbs", "verify"]

BROKEN = """
import sys, time
import horovod.tensorflow as hvd
import tensorflow as tf
from hvd_dbs.cli import verify, verify_training
from hvd_dbs.cli.main import main
from hvd_dbs.tensorflow import gradient_reducer

original = gradient_reducer.weighted_allreduce

def late(*arguments):
    time.sleep(2 if hvd.rank() == 0 else 0)  # The others must not end the job before it has told.
    return original_findings(*arguments)

def equal(tensors, weight, **options):
    return original(tensors, tf.cast(weight > 0, tf.float32), **options)

def dying(*arguments, **options):
    if hvd.rank() == 1:
        raise RuntimeError("no memory left")
    return original_step(*arguments, **options)

original_findings = verify.sampling_findings
original_step = verify_training._Watch.on_train_batch_end
if sys.argv.pop() == "equal":
    gradient_reducer.weighted_allreduce = equal
    verify.sampling_findings = late
else:
    verify_training._Watch.on_train_batch_end = dying
main(["verify"])
"""


@pytest.mark.parametrize(
    ("command", "heading"),
    [
        (VERIFY, "1 rank on 1 host, 1 on CPU"),
        (horovodrun(2, VERIFY, "--gloo"), "2 ranks on 1 host, 2 on CPU"),
    ],
    ids=["plain", "gloo"],
)
def test_balanced_training_is_verified(command, heading):
    job = run_job(command, timeout=120)
    assert job.exit_code == 0, job.output[-4000:]
    assert heading in job.output
    assert "ok      weights as of one process" in job.output
    assert "FAILED" not in job.output


def test_what_is_broken_is_named_and_ends_the_job_with_1():
    # Under Gloo a rank that ends waits for no other, and the launcher then ends them all.
    job = run_job(horovodrun(2, python("-c", BROKEN, "equal"), "--gloo"), timeout=120)
    assert job.exit_code == 1, job.output[-4000:]
    assert "FAILED  weights as of one process" in job.output
    assert "ok      a rank without samples contributes nothing" in job.output
    assert "another rank is gone" not in job.output


def test_a_rank_that_fails_alone_ends_the_job():
    job = run_job(mpirun(2, python("-c", BROKEN, "dying")), timeout=120)
    assert job.exit_code not in (0, -1), job.output[-4000:]
    assert "has failed: RuntimeError: no memory left" in job.output
