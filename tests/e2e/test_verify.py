"""`hvd-dbs verify` as users start it. What it finds is tested on ranks of a job, in tests/mpi."""

from __future__ import annotations

from tests.ahead import Jobs
from tests.jobs import horovodrun, mpirun, python

AS_IT_IS_AND_BROKEN = """
import time
import horovod.tensorflow as hvd
import tensorflow as tf
from hvd_dbs.cli.main import main
from hvd_dbs.cli.verify import entry
from hvd_dbs.tensorflow import gradient_reducer

assert main(["verify"], standalone_mode=False) == 0
if hvd.rank() == 0:
    print("and now broken", flush=True)

weighted, findings = gradient_reducer.weighted_allreduce, entry.sampling_findings

def equally(tensors, weight, **options):
    return weighted(tensors, tf.cast(weight > 0, tf.float32), **options)

def late(*arguments):
    time.sleep(2 if hvd.rank() == 0 else 0)  # The others must not end the job before it has told.
    return findings(*arguments)

gradient_reducer.weighted_allreduce, entry.sampling_findings = equally, late
main(["verify"])
"""

DYING = """
import horovod.tensorflow as hvd
from hvd_dbs.cli.main import main
from hvd_dbs.cli.verify import training as verify_training

original = verify_training._Watch.on_train_batch_end

def dying(*arguments, **options):
    if hvd.rank() == 1:
        raise RuntimeError("no memory left")
    return original(*arguments, **options)

verify_training._Watch.on_train_batch_end = dying
main(["verify"])
"""


MODEL = ["hvd-dbs", "verify", "--model"]

COMMANDS = {
    "one process": ["hvd-dbs", "verify"],
    # Under Gloo a rank that ends waits for no other, and the launcher then ends them all.
    "broken": horovodrun(2, python("-c", AS_IT_IS_AND_BROKEN), "--gloo"),
    "dying": mpirun(2, python("-c", DYING)),
    "a model that differs": mpirun(2, [*MODEL, "tests.mpi.planted_errors:lora_loss"]),
    "a model in one process": [*MODEL, "tests.mpi.guide_models:lora"],
    "no model": mpirun(2, [*MODEL, "tests.mpi.no_such:lora"]),
}

JOBS = Jobs(COMMANDS, timeout=120)


@JOBS.needed("one process")
def test_one_process_is_verified():
    job = JOBS["one process"]
    assert job.exit_code == 0, job.output[-4000:]
    assert "1 rank on 1 host, 1 on CPU" in job.output
    assert "ok      weights as of one process" in job.output
    assert "one rank says little" in job.output
    assert "FAILED" not in job.output


@JOBS.needed("broken")
def test_what_is_broken_is_named_and_ends_the_job_with_1():
    job = JOBS["broken"]
    assert job.exit_code == 1, job.output[-4000:]
    before, _, broken = job.output.partition("and now broken")
    assert "2 ranks on 1 host, 2 on CPU" in before
    assert "ok      weights as of one process" in before
    assert "FAILED" not in before
    assert "FAILED  weights as of one process" in broken
    assert "ok      a rank without samples contributes nothing" in broken
    assert "another rank is gone" not in broken


@JOBS.needed("dying")
def test_a_rank_that_fails_alone_ends_the_job():
    job = JOBS["dying"]
    assert job.exit_code not in (0, -1), job.output[-4000:]
    assert "has failed: RuntimeError: no memory left" in job.output


@JOBS.needed("a model that differs")
def test_a_model_that_differs_ends_the_job_with_1():
    job = JOBS["a model that differs"]
    assert job.exit_code == 1, job.output[-4000:]
    assert "tests.mpi.planted_errors:lora_loss: 12 steps of 32 samples" in job.output
    assert "FAILED  weights as of one process" in job.output
    assert "cause   the loss of a global batch is" in job.output
    assert "another rank is gone" not in job.output


@JOBS.needed("a model in one process")
def test_a_model_in_one_process_says_little():
    job = JOBS["a model in one process"]
    assert job.exit_code == 0, job.output[-4000:]
    assert "ok      weights as of one process" in job.output
    assert "mpirun -np 4 hvd-dbs verify --model tests.mpi.guide_models:lora" in job.output


@JOBS.needed("no model")
def test_a_model_that_is_not_there_is_said_in_a_sentence():
    job = JOBS["no model"]
    assert job.exit_code == 2, job.output[-4000:]
    assert "tests.mpi.no_such cannot be imported: ModuleNotFoundError" in job.output
    assert "Traceback" not in job.output
