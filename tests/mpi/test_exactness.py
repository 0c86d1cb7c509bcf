"""What equals one process, and what says that it does not, under mpirun.

With HVD_DBS_ALL_CASES=1 all cases also run on 3 ranks, and on 2 ranks with `adaptive`. Without it,
those do that take a way of their own over the ranks.
"""

import os

from tests.mpi import checks

_CASES = "tests.mpi.exactness_checks"
_SOME = (
    "check_masked_transformer_adam",
    "check_token_weights_and_mask",
    "check_mean_with_token_weights",
    "check_two_outputs_with_different_masks",
    "check_sum",
    "check_added_losses",
    "check_own_step",
    "check_batches_cut_to_their_longest_sequence",
    "check_synchronized_batch_normalization",
    "check_generative_adversarial_network",
    "check_overflow_on_one_rank",
    "check_embeddings_adam",
)
_ONLY = () if os.environ.get("HVD_DBS_ALL_CASES") == "1" else _SOME

test_exactness = checks.as_tests(_CASES, num_ranks=[2])
test_exactness_on_three_ranks = checks.as_tests(_CASES, num_ranks=[3], only=_ONLY)
test_exactness_with_adaptive = checks.as_tests(
    _CASES, num_ranks=[2], only=_ONLY, environment={"EXACTNESS_STRATEGY": "adaptive"}
)
test_loudness = checks.as_tests("tests.mpi.loud_checks", num_ranks=[2])
