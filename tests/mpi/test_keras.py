"""Horovod's Keras interface on 1 and 2 ranks under mpirun."""

from tests.mpi import checks

test_keras = checks.as_tests("tests.mpi.keras_checks", num_ranks=[1, 2])
