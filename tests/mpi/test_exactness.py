"""What equals one process, and what warns that it does not, under mpirun.

With HVD_DBS_ALL_CASES=1 all cases also run on 3 ranks, and on 2 ranks with `adaptive`. Without it,
one case runs there of each kind of layer, loss or optimizer that communicates in its own way.
"""

import os

from tests.mpi.checks import as_tests, some

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
_IN_MICRO_BATCHES = (
    "check_in_parts_by_rank",
    "check_in_parts_two_outputs_with_different_masks",
    "check_in_parts_embeddings",
    "check_in_parts_overflow_on_one_rank",
    "check_in_parts_xla",
    "check_a_pass_has_one_micro_batch_and_is_traced_once",
    "check_a_loop_of_ones_own_equals_one_process",
    "check_what_cannot_be_cut_is_an_error_on_all_ranks",
    "check_batch_normalization_is_warned_of",
    "check_counters_of_random_layers_are_the_same_on_all_ranks",
    "check_xla_compiles_micro_batches_and_leaves_exchanges_alone",
)
_HAS_TIME = os.environ.get("HVD_DBS_ALL_CASES") == "1"

_MICRO_BATCHES = "micro_batch" if _HAS_TIME else some("micro_batch", _IN_MICRO_BATCHES)

test_two_ranks = as_tests("exactness", "loud", _MICRO_BATCHES, ranks=2)
test_three_ranks = as_tests(
    "exactness" if _HAS_TIME else some("exactness", _ON_THREE_RANKS),
    some("statistics", ["check_synchronized_layers_equal_one_process"]),
    some("averaged_statistics", ["check_statistics_of_own_batches_are_averaged_once_an_epoch"]),
    "micro_batch" if _HAS_TIME else some("micro_batch", ["check_in_parts_by_rank"]),
    some("random", ["check_seeds_are_split_once_however_often"]),
    *("job", "resume", "wrong_state"),
    ranks=3,
)
test_two_ranks_with_adaptive = as_tests(
    "exactness" if _HAS_TIME else some("exactness", _WITH_ADAPTIVE),
    ranks=2,
    environment={"EXACTNESS_STRATEGY": "adaptive"},
)
