"""What equals one process, and what says that it does not, under mpirun."""

from tests.mpi import checks

_WITH_ADAPTIVE = (
    "check_masked_transformer_adam",
    "check_mean_with_token_weights",
    "check_two_outputs_with_different_masks",
    "check_sum",
    "check_added_losses",
    "check_own_step",
    "check_batches_cut_to_their_longest_sequence",
    "check_synchronized_batch_normalization",
)

test_exactness = checks.as_tests("tests.mpi.exactness_checks", num_ranks=[2, 3])
test_exactness_with_adaptive = checks.as_tests(
    "tests.mpi.exactness_checks",
    num_ranks=[2],
    only=_WITH_ADAPTIVE,
    environment={"EXACTNESS_STRATEGY": "adaptive"},
)
test_loudness = checks.as_tests("tests.mpi.loud_checks", num_ranks=[2])
