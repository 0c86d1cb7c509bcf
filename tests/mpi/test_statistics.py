"""Statistics of layers, and what `verify --model` finds, on 2 ranks under mpirun.

With HVD_DBS_ALL_CASES=1 errors are planted into every guide model. Without it, each kind of error
is planted into one that trains fast.
"""

import os

from tests.mpi.checks import all_but, as_tests

_OF_A_KIND_THAT_ANOTHER_HAS = (
    "check_a_layer_of_a_language_model_is_found",
    "check_a_loss_of_a_language_model_is_found",
    "check_a_layer_of_a_gan_is_found",
    "check_a_loss_of_a_gan_is_found",
    "check_a_layer_of_a_vae_is_found",
)
_HAS_TIME = os.environ.get("HVD_DBS_ALL_CASES") == "1"

test_two_ranks = as_tests(
    "statistics",
    "averaged_statistics",
    "random",
    "verify_model" if _HAS_TIME else all_but("verify_model", _OF_A_KIND_THAT_ANOTHER_HAS),
    ranks=2,
)
