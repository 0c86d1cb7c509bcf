"""Data, training and evaluation on unequal ranks against one process, under mpirun."""

from tests.mpi.checks import all_but, as_tests, some

_ON_ONE_RANK = (
    "check_uneven_plan_equals_one_process",
    "check_plans_that_change_within_an_epoch_equal_one_process",
)
_ON_TWO_RANKS = (
    *_ON_ONE_RANK,
    "check_changing_plans_and_partial_batches_equal_one_process",
    "check_every_sample_once_and_the_same_global_batches",
)
_WITHOUT_THE_LIBRARY = (
    "check_plans_that_change_within_an_epoch_equal_one_process",
    "check_a_rank_without_samples_harms_nothing",
)

test_three_ranks = as_tests(
    *("training", "decision", "loop", "optimizer", "evaluation", "validation", "profile"),
    all_but("communication", ["check_communication_is_measured_and_no_slow_rank_is_part_of_it"]),
    ranks=3,
)
test_two_ranks = as_tests(
    some("training", _ON_TWO_RANKS),
    some("optimizer", ["check_sparse_gradients_equal_one_process"]),
    some("evaluation", ["check_evaluate_equals_one_process"]),
    *(
        "keras",
        "learning_rate",
        "several_optimizers",
        "memory",
        "source",
        "wrong_source",
        "journal",
        "verify",
        "wrong_use",
        "wrong_fit",
        "clock",
        "communication",
    ),
    ranks=2,
)
test_one_rank = as_tests(
    some("training", _ON_ONE_RANK),
    some("evaluation", ["check_evaluate_equals_one_process"]),
    some("memory", ["check_a_step_that_does_not_fit_is_named"]),
    some("source", ["check_records_in_files_equal_one_process"]),
    *("keras", "learning_rate", "job", "wrong_use", "wrong_fit", "clock", "resume", "wrong_state"),
    ranks=1,
)
test_two_ranks_without_the_native_library = as_tests(
    some("training", _WITHOUT_THE_LIBRARY),
    some(
        "optimizer",
        [
            "check_sparse_gradients_equal_one_process",
            "check_mixed_precision_skips_the_same_steps_on_all_ranks",
        ],
    ),
    some("communication", ["check_a_quick_link_hides_what_one_bucket_does_not"]),
    ranks=2,
    environment={"HVD_DBS_NATIVE": "0"},
)
