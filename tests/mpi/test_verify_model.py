"""`hvd-dbs verify --model` on 2 ranks under mpirun."""

from tests.mpi import checks

test_verify_model = checks.as_tests("tests.mpi.verify_model_checks", num_ranks=[2])
