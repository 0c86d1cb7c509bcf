"""`hvd-dbs doctor` as a job of several ranks."""

from __future__ import annotations

import pytest

from tests.ahead import Jobs
from tests.jobs import horovodrun, mpirun, python

DOCTOR = python("-m", "hvd_dbs.cli.main", "doctor")

COMMANDS = {
    "mpirun": mpirun(2, DOCTOR),
    "horovodrun --gloo": horovodrun(2, DOCTOR, "--gloo"),
    "problem": [
        *(*mpirun(1, DOCTOR), ":", "-np", "1"),
        *("env", "HVD_DBS_NATIVE=nonsense", *DOCTOR),
    ],
    "absence": [*mpirun(1, [*DOCTOR, "--timeout", "2"]), ":", "-np", "1", "sleep", "300"],
}

JOBS = Jobs(COMMANDS, timeout=120)


@pytest.mark.parametrize(
    ("launcher", "has_mpi"),
    [
        pytest.param("mpirun", True, marks=JOBS.needed("mpirun")),
        pytest.param("horovodrun --gloo", False, marks=JOBS.needed("horovodrun --gloo")),
    ],
)
def test_one_report_of_all_ranks(launcher, has_mpi):
    job = JOBS[launcher]
    assert job.exit_code == 0, job.output[-4000:]
    assert job.output.count("hvd_dbs can train here") == 1
    for trial in ("Horovod sums right", "gradients are weighted right (CPU)", ": ranks 0, 1 on "):
        assert job.output.count(trial) == 1, job.output[-4000:]
    assert job.output.count("mpi4py sums right, with the same ranks") == has_mpi
    assert "not so" not in job.output


@JOBS.needed("problem")
def test_a_problem_of_one_rank_is_named_and_ends_all_with_an_error():
    job = JOBS["problem"]
    assert job.exit_code == 1, job.output[-4000:]
    assert job.output.count("problem  rank 1: HVD_DBS_NATIVE='nonsense' is unknown") == 1
    assert job.output.count("hvd_dbs cannot train here: 1 problem") == 1
    # What one rank would fail at alone is not tried.
    assert "Horovod sums right" in job.output
    assert "gradients are weighted" not in job.output


@JOBS.needed("absence")
def test_a_rank_that_never_comes_is_not_waited_for_for_ever():
    job = JOBS["absence"]
    assert job.exit_code == 1, job.output[-4000:]
    assert "rank 0: problem  the ranks have not found each other" in job.output
    assert "rank 0: hvd_dbs cannot train here: 1 problem" in job.output
