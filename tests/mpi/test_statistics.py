"""Batch normalization and random numbers under mpirun."""

from tests.mpi import checks

test_statistics = checks.as_tests("tests.mpi.statistics_checks", num_ranks=[2, 3])
