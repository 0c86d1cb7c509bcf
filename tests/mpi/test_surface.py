"""Horovod's own surface on 2 ranks under mpirun."""

from tests.mpi.checks import as_tests

test_two_ranks = as_tests(
    "surface", "broadcast", ranks=2, environment={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
)
