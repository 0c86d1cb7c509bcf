"""What `hvd-dbs doctor` tries out with Horovod, on all ranks together."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hvd_dbs.cli.doctor.facts import Facts
from hvd_dbs.cli.doctor.finding import Finding, merge
from hvd_dbs.cli.doctor.job_findings import of_job
from hvd_dbs.comm.introduction import Introduction

_REBUILD = "install Horovod and mpi4py for the MPI of the mpirun in use, as scripts/setup.sh does"


class Job:
    """All ranks of the job, connected by Horovod. Every method is collective."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        from hvd_dbs.elastic.rendezvous import init

        init()
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            own = gpus[hvd.local_rank() % len(gpus)]
            tf.config.set_visible_devices(own, "GPU")
            tf.config.experimental.set_memory_growth(own, True)

    def introduce(self, facts: Facts) -> list[Introduction]:
        """Hosts and versions of all ranks, by rank, whatever their versions of hvd_dbs are."""
        import tensorflow as tf

        from hvd_dbs.comm import introduction
        from hvd_dbs.comm.horovod_collective import HorovodCollective

        with tf.device("CPU"):
            return introduction.gather(HorovodCollective("doctor"), facts.versions)

    def gather(self, item: Any) -> list[Any]:
        """Something of every rank, by rank."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        with tf.device("CPU"):  # Some ranks may have no GPU.
            return list(hvd.allgather_object(item, name="hvd_dbs.doctor"))

    def try_out(self, facts: Sequence[Facts]) -> list[Finding]:
        """What comes out of trying what training uses.

        Args:
            facts: Of each rank, by rank: so that all try the same.
        """
        import horovod.tensorflow as hvd

        launched = facts[self.rank].launch.size
        if launched > self.size:
            text = (
                f"the launcher started {launched} processes, but Horovod finds {self.size}: the "
                f"program that started them is not that of Horovod's MPI"
            )
            return [Finding("problem", text, _REBUILD)]
        trials = {"Horovod sums right": self._sum}
        # With a problem a rank could fail alone, and the others wait for it.
        if all(finding.level != "problem" for finding in of_job(facts)):
            if hvd.mpi_enabled():
                trials["mpi4py sums right, with the same ranks"] = self._sum_with_mpi4py
            has_gpus = all(one.num_gpus and "NCCL" in one.horovod_parts for one in facts)
            device = "GPU" if has_gpus else "CPU"
            trials[f"gradients are weighted right ({device})"] = lambda: self._weigh(device)
        tried = [_tried(name, trial) for name, trial in trials.items()]
        return merge(self.gather(tried), [one.host for one in facts])

    def _sum(self) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        with tf.device("CPU"):
            total = hvd.allreduce(tf.constant(self.rank + 1.0), op=hvd.Sum)
        _require("the sum", float(total), self.size * (self.size + 1) / 2)

    def _sum_with_mpi4py(self) -> None:
        from mpi4py import MPI

        from hvd_dbs.comm.mpi_collective import MpiCollective

        # Any other call to an MPI that is not Horovod's would end the process.
        _require("whether its MPI is the one that Horovod started", MPI.Is_initialized(), True)
        world = MPI.COMM_WORLD
        _require("(rank, size)", (world.rank, world.size), (self.rank, self.size))
        rows = MpiCollective().allgather(np.array([self.rank + 1.0]))
        _require("the sum", float(rows.sum()), self.size * (self.size + 1) / 2)

    def _weigh(self, device: str) -> None:
        import tensorflow as tf

        from hvd_dbs.ops.weighted_allreduce import weighted_allreduce

        # Among others rank 0 counts for nothing, and may have anything.
        weights = np.arange(self.size) if self.size > 1 else np.ones(1)
        value = float(self.rank) if weights[self.rank] else float("nan")
        with tf.device(device):
            means: Any = weighted_allreduce([tf.fill([3], value)], float(weights[self.rank]))
        expected = float(np.arange(self.size) @ weights / weights.sum())
        if not np.allclose(means, expected, rtol=1e-5):
            _require("the weighted mean", np.array(means).tolist(), [[expected] * 3])


def _tried(name: str, trial: Callable[[], None]) -> Finding:
    try:
        trial()
        return Finding("ok", name)
    except Exception as error:  # Whatever it is, the other ranks hear of it.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        fix = "give each rank a GPU of its own" if "GPU" in name else _REBUILD
        return Finding("problem", f"not so: {name}. {lines[-1][:300]}", fix)


def _require(name: str, given: Any, expected: Any) -> None:
    if given != expected:
        raise RuntimeError(f"{name} is {given}, expected {expected}.")


@contextlib.contextmanager
def deadline(seconds: float, say: Callable[[Finding], object]) -> Iterator[None]:
    """Ends the process where what is done within does not end: it waits for ranks that are lost.

    Args:
        seconds: How long to wait.
        say: Is told what is found then.
    """

    def give_up() -> None:
        text = f"the ranks have not found each other, or have lost one, within {seconds:g} s"
        fix = (
            "horovodrun --network-interfaces NAME, or mpirun --mca btl_tcp_if_include NAME: a "
            "network in which all hosts reach each other; hvd-dbs doctor --hosts LIST looks for one"
        )
        say(Finding("problem", text, fix))
        sys.stdout.flush()
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
