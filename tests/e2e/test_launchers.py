"""The README's example, under every launcher."""

from __future__ import annotations

import re

import pytest

from tests.ahead import Jobs
from tests.jobs import REPOSITORY, horovodrun, mpirun, python, run_job

EXAMPLE = python("examples/keras_digits.py", "--epochs", "1", "--global-batch-size", "512")

# The same net on the same global batches: the launcher changes nothing.
LAUNCHERS = {
    "plain": EXAMPLE,
    "mpirun": mpirun(2, EXAMPLE),
    "horovodrun": horovodrun(2, EXAMPLE),
    "horovodrun --gloo": horovodrun(2, EXAMPLE, "--gloo"),
}


def results(output: str) -> tuple[float, float]:
    found = re.search(r"test loss ([\d.]+), test accuracy ([\d.]+)", output)
    assert found, output[-4000:]
    return float(found[1]), float(found[2])


EXCHANGES = """
import time, horovod.tensorflow as hvd, numpy as np
from hvd_dbs.comm.collective import connect
hvd.init()
rank = hvd.rank()
ours, others = connect("ours"), connect("others")
time.sleep(0.5 * rank)  # Rank 0 has all of them under way.
rows = [np.array([rank + i]) for i in range(4)]
under_way = [
    c.start(lambda ranks, row=row: ranks.allgather(row)[:, 0].tolist())
    for c, row in zip((ours, others, ours), rows)
]
assert ours.broadcast(rows[0]).tolist() == [0]  # After what ours has under way.
assert hvd.allgather(rows[3]).numpy().tolist() == [3, 4]
assert [p.result() for p in under_way] == [[0, 1], [1, 2], [2, 3]]
for dtype in ("uint8", "int32", "int64", "float32", "float64"):
    assert connect("more").allgather(np.array([rank], dtype)).tolist() == [[0], [1]]
print("done", rank)
"""


CHANGED_RANKS = """
import threading, hvd_dbs.tensorflow as hvd, numpy as np
from concurrent.futures import wait
from hvd_dbs.comm.collective import connect
from hvd_dbs.comm.negotiation_time import negotiation_seconds
from hvd_dbs.watchdog.crash_report import is_lost_peer
hvd.init()
rank, ours = hvd.rank(), connect("ours")
for exchange in (lambda ranks: ranks.allgather(np.array([-1])), negotiation_seconds):
    may_go_on = threading.Event()
    under_way = ours.start(lambda ranks: (may_go_on.wait(), exchange(ranks)))
    ours.close()
    hvd.shutdown()
    hvd.init()
    ours = connect("ours")
    if rank == 1:  # One rank alone meets its exchange of before.
        may_go_on.set()
        wait([under_way], 5)
    assert negotiation_seconds(ours) > 0
    assert ours.allgather(np.array([rank])).tolist() == [[0], [1]]
    may_go_on.set()
    assert is_lost_peer(under_way.exception(5))
print("done", rank)
"""


LATE = """
import time, hvd_dbs.tensorflow as hvd, numpy as np
from hvd_dbs.comm import collective, mpi_collective
hvd.init()
ours = collective.connect()
ours.broadcast(np.zeros(1))
if hvd.rank() == 1:  # Looks for what has come only when rank 0 has ended, as on a busy host.
    mpi_collective._LEAST_SLEEP = mpi_collective._MOST_SLEEP = 1.0
else:
    time.sleep(0.3)
assert ours.allgather(np.array([hvd.rank()])).tolist() == [[0], [1]]
"""


def once_more_if_it_fails(command):
    """A command that may meet what Horovod's launcher has left.

    Its store forgets the ranks' addresses once all have read them. A rank that is done with a
    scope of its own (`cross_0`) makes it forget who has read those of its host, so that they stay.
    Now and then `hvd.init()` after `hvd.shutdown()` connects to a port of before, and Gloo aborts.
    """
    return ["bash", "-c", '"$@" || "$@"', "once", *command]


OTHERS = {
    "late at the end": mpirun(2, python("-c", LATE)),
    "late at the shutdown": mpirun(2, python("-c", LATE + "hvd.shutdown()")),
    "exchanges": horovodrun(2, python("-c", EXCHANGES), "--gloo"),
    "changed ranks": once_more_if_it_fails(horovodrun(2, python("-c", CHANGED_RANKS), "--gloo")),
    "files": mpirun(2, python("examples/keras_tfrecord.py", "--epochs", "2", "--strategy", "even")),
    "wrong argument": mpirun(2, python("examples/keras_digits.py", "--strategy", "quick")),
}

JOBS = Jobs({**LAUNCHERS, **OTHERS}, timeout=180)


def named(*names):
    """Names of jobs as parameters of a test that needs them."""
    return [pytest.param(name, marks=JOBS.needed(name)) for name in names]


@JOBS.needed("plain")
@pytest.mark.parametrize("launcher", named(*[name for name in LAUNCHERS if name != "plain"]))
def test_the_example_learns_the_same_under(launcher):
    job = JOBS[launcher]
    assert job.exit_code == 0, job.output[-4000:]
    assert results(job.output) == pytest.approx(results(JOBS["plain"].output), abs=2e-3)


@JOBS.needed("exchanges")
def test_exchanges_may_be_under_way_at_once_under_gloo():
    """Called eagerly, Horovod's allgathers all have one name, and the second one is refused."""
    job = JOBS["exchanges"]
    assert job.exit_code == 0, job.output[-4000:]
    assert "done 0" in job.output and "done 1" in job.output
    # TensorFlow counted the functions of all exchanges together, and warned of their number.
    assert "retracing" not in job.output


@JOBS.needed("changed ranks")
def test_what_was_under_way_when_the_ranks_changed_meets_nothing_of_theirs():
    """An elastic job stood still: sums of before were taken for those of the new ranks."""
    job = JOBS["changed ranks"]
    assert job.exit_code == 0, job.output[-4000:]
    assert "done 0" in job.output and "done 1" in job.output


@pytest.mark.parametrize("name", named("late at the end", "late at the shutdown"))
def test_who_looks_late_for_the_last_exchange_finds_it(name):
    """Horovod ends MPI on all ranks with the first that ends: that was taken for a failure."""
    assert JOBS[name].exit_code == 0, JOBS[name].output[-4000:]


def test_a_job_of_gloo_ends_without_mpi():
    """The shutdown imported mpi4py, which initializes MPI; without mpi4py it was an ImportError."""
    code = (
        "import sys, hvd_dbs.tensorflow as hvd; hvd.init(); assert not hvd.mpi_enabled(); "
        "hvd.shutdown(); print('MPI was used:', 'mpi4py.MPI' in sys.modules)"
    )
    environment = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    job = run_job(python("-c", code), 120, environment)
    assert job.exit_code == 0, job.output
    assert "MPI was used: False" in job.output


@pytest.mark.alone
def test_a_slow_rank_gets_fewer_samples():
    job = run_job(
        [
            str(REPOSITORY / "scripts" / "heterogeneous.sh"),
            *("--speeds", "1,0.25", "--from", "1", "--"),
            *mpirun(2, python("examples/keras_digits.py", "--epochs", "2", "--strategy", "dbs")),
        ],
        timeout=240,
    )
    assert job.exit_code == 0, job.output[-4000:]
    plans = re.findall(r"-> \[(\d+), (\d+)\]: step", job.output)
    assert plans, job.output[-4000:]
    fast, slow = map(int, plans[-1])
    assert fast + slow == 256
    assert fast > 1.5 * slow
    assert "rank 1 was slowest" in job.output


@JOBS.needed("files")
def test_the_example_of_files_learns():
    job = JOBS["files"]
    assert job.exit_code == 0, job.output[-4000:]
    assert results(job.output)[1] > 0.6


@JOBS.needed("wrong argument")
def test_a_wrong_argument_ends_the_job_with_its_reason():
    job = JOBS["wrong argument"]
    assert job.exit_code not in (0, -1)
    assert "strategy='quick' is unknown. Known: " in job.output
