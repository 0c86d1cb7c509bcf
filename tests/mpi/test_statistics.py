"""Statistics of layers, and what `verify --model` finds, on 2 ranks under mpirun."""

from tests.mpi.checks import as_tests

test_two_ranks = as_tests("statistics", "random", "verify_model", ranks=2)
