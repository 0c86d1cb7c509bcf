"""Horovod's own surface on 2 ranks under mpirun."""

from tests.mpi import checks

test_surface = checks.as_tests(
    "tests.mpi.surface_checks",
    num_ranks=[2],
    environment={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"},
)
