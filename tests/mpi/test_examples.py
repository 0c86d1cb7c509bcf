"""The scripts of examples/by_feature, one after the other in one job."""

from tests.mpi.checks import as_tests

test_two_ranks = as_tests("example", ranks=2)
