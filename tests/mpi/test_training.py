"""Training under mpirun: all checks on 3 ranks, what differs by their number on 1 and 2 as well."""

from tests.mpi import checks

_MODULES = tuple(
    f"tests.mpi.{name}_checks"
    for name in (
        "training",
        "loop",
        "optimizer",
        "evaluation",
        "source",
        "journal",
        "profile",
        "verify",
    )
)
_ON_ONE_RANK = (
    "check_uneven_plan_equals_one_process",
    "check_plans_that_change_within_an_epoch_equal_one_process",
    "check_evaluate_equals_one_process",
    "check_records_in_files_equal_one_process",
)
_ON_TWO_RANKS = (
    *_ON_ONE_RANK,
    "check_changing_plans_and_partial_batches_equal_one_process",
    "check_sparse_gradients_equal_one_process",
    "check_every_sample_once_and_the_same_global_batches",
)
_WITHOUT_THE_LIBRARY = (
    "check_plans_that_change_within_an_epoch_equal_one_process",
    "check_sparse_gradients_equal_one_process",
    "check_a_rank_without_samples_harms_nothing",
    "check_mixed_precision_skips_the_same_steps_on_all_ranks",
)

test_training = checks.as_tests(*_MODULES, num_ranks=[3])
test_training_on_two_ranks = checks.as_tests(*_MODULES, num_ranks=[2], only=_ON_TWO_RANKS)
test_training_on_one_rank = checks.as_tests(*_MODULES, num_ranks=[1], only=_ON_ONE_RANK)
test_training_without_the_native_library = checks.as_tests(
    *_MODULES, num_ranks=[2], only=_WITHOUT_THE_LIBRARY, environment={"HVD_DBS_NATIVE": "0"}
)
