"""Faults, wrong arguments, clocks and saved states on 1 and 3 ranks under mpirun."""

from tests.mpi import checks

test_job = checks.as_tests(
    "tests.mpi.job_checks",
    "tests.mpi.wrong_use_checks",
    "tests.mpi.clock_checks",
    "tests.mpi.resume_checks",
    num_ranks=[1, 3],
)
