"""The weighted allreduce on 1 and 3 ranks under mpirun."""

import pytest

from hvd_dbs.ops import native
from tests.mpi import checks

if native.loaded() is None:
    pytest.skip(native.reason_for_absence(), allow_module_level=True)

test_weighted_allreduce = checks.as_tests(
    "tests.mpi.weighted_allreduce_checks",
    num_ranks=[1, 3],
    environment={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"},
)
