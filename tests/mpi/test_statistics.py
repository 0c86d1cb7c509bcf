"""Batch normalization and random numbers under mpirun: all checks on 2 ranks, three on 3 ranks."""

from tests.mpi import checks

_CHECKS = "tests.mpi.statistics_checks"
_ON_THREE_RANKS = (
    "check_synchronized_layers_equal_one_process",
    "check_statistics_of_own_batches_are_averaged_once_an_epoch",
    "check_seeds_are_split_once_however_often",
)

test_statistics = checks.as_tests(_CHECKS, num_ranks=[2])
test_statistics_on_three_ranks = checks.as_tests(_CHECKS, num_ranks=[3], only=_ON_THREE_RANKS)
