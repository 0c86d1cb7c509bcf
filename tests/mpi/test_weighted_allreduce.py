"""The weighted allreduce on 1 and 3 ranks under mpirun."""

import pytest

from hvd_dbs.ops import native
from tests.mpi.checks import as_tests

if native.loaded() is None:
    pytest.skip(native.reason_for_absence(), allow_module_level=True)

_SETTINGS = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}

test_one_rank = as_tests("weighted_allreduce", "allreduce_weights", ranks=1, environment=_SETTINGS)
test_three_ranks = as_tests(
    "weighted_allreduce", "allreduce_weights", ranks=3, environment=_SETTINGS
)
