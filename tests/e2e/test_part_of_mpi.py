"""MPI beside Horovod: with the same ranks, if it has threads, and once all ranks are there."""

from __future__ import annotations

import pytest

from tests.jobs import mpirun, python, run_job

TRAINING = """
import os, sys
import numpy as np

if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    from mpi4py import MPI  # It joins MPI, and does something else.
    sys.exit()
import keras
import hvd_dbs.keras as hvd

hvd.init(comm=[1, 0])
balancer = hvd.Balancer(8)
assert balancer.rank == hvd.rank()
net = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer), "mse")
dataset = balancer.dataset((np.ones((64, 3)), np.ones((64, 1))))
net.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.DynamicBatchSizeCallback(balancer),
])
print(type(balancer.collective).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("ranks", "environment", "collective"),
    [
        (2, {}, "MpiCollective"),
        (2, {"HOROVOD_MPI_THREADS_DISABLE": "1"}, "HorovodCollective"),
        (3, {}, "HorovodCollective"),
    ],
)
def test_ranks_exchange_by_what_they_have(tmp_path, ranks, environment, collective):
    (tmp_path / "train.py").write_text(TRAINING)
    job = run_job(mpirun(ranks, python(str(tmp_path / "train.py"))), 120, environment)
    assert job.exit_code == 0, job.output
    assert job.output.count(collective) == 2, job.output


ALONE = """
import hvd_dbs.keras as hvd

hvd.init()
hvd.Balancer(8)
if hvd.rank() == 0:
    hvd.Balancer(8)
"""


def test_a_rank_that_connects_alone_ends_with_the_others(tmp_path):
    (tmp_path / "train.py").write_text(ALONE)
    job = run_job(mpirun(2, python(str(tmp_path / "train.py"))), 60)
    assert job.exit_code not in (0, -1), job.output
    assert "another rank is gone while this one was in <module> (train.py, line 7)" in job.output
