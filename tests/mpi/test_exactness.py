"""What equals one process, and what says that it does not, under mpirun.

With HVD_DBS_ALL_CASES=1 all cases also run on 3 ranks, and on 2 ranks with `adaptive`. Without it,
one case runs there of each way that takes its own course over the ranks.
"""

import os

from tests.mpi import checks

_CASES = "tests.mpi.exactness_checks"
_HAS_TIME = os.environ.get("HVD_DBS_ALL_CASES") == "1"
_ON_THREE_RANKS = (
    "check_two_outputs_with_different_masks",
    "check_sum",
    "check_batches_cut_to_their_longest_sequence",
    "check_synchronized_batch_normalization",
    "check_overflow_on_one_rank",
    "check_embeddings_adam",
)
_WITH_ADAPTIVE = (
    "check_masked_transformer_adam",
    "check_two_outputs_with_different_masks",
    "check_own_step",
)

test_exactness = checks.as_tests(_CASES, num_ranks=[2])
test_exactness_on_three_ranks = checks.as_tests(
    _CASES, num_ranks=[3], only=() if _HAS_TIME else _ON_THREE_RANKS
)
test_exactness_with_adaptive = checks.as_tests(
    _CASES,
    num_ranks=[2],
    only=() if _HAS_TIME else _WITH_ADAPTIVE,
    environment={"EXACTNESS_STRATEGY": "adaptive"},
)
test_loudness = checks.as_tests("tests.mpi.loud_checks", num_ranks=[2])
