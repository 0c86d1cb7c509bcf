"""Training on 1, 2 and 3 ranks under mpirun."""

from tests.mpi import checks

test_training = checks.as_tests(
    "tests.mpi.training_checks",
    "tests.mpi.evaluation_checks",
    "tests.mpi.source_checks",
    num_ranks=[1, 2, 3],
)
test_training_without_the_native_library = checks.as_tests(
    "tests.mpi.training_checks", num_ranks=[2], environment=[("HVD_DBS_NATIVE", "0")]
)
