"""How this process was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# By what the launchers tell their processes: rank and size. The last ones are MPICH's and Slurm's.
_LAUNCHERS = (
    ("gloo", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpi", "PMI_RANK", "PMI_SIZE"),
    ("mpi", "PMIX_RANK", "SLURM_NTASKS"),
)


@dataclass(frozen=True)
class Launch:
    """How this process was started.

    Attributes:
        kind: "Open MPI", "mpi" (another one), "gloo" (horovodrun's own way), or "" as one process.
        rank: Its rank, as the launcher says.
        size: Processes that the launcher has started.
        num_apart: Where processes were started together that know nothing of each other, such as by
            Slurm without PMIx: how many; each believes to be the only one.
        may_abort: Whether Slurm's older PMI has started it.
    """

    kind: str = ""
    rank: int = 0
    size: int = 1
    num_apart: int = 0
    may_abort: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """Reads it from environment variables."""
        for kind, rank, size in _LAUNCHERS:
            if all(environment.get(name, "").isdecimal() for name in (rank, size)):
                by_pmi = rank == "PMI_RANK" and "SLURM_PROCID" in environment
                may_abort = by_pmi and "PMIX_RANK" not in environment
                numbers = int(environment[rank]), int(environment[size])
                return cls(kind, *numbers, may_abort=may_abort)
        # In a batch script and in salloc's shell there are numbers of tasks, but no tasks yet.
        task = environment.get("SLURM_PROCID", "")
        counted = "SLURM_NTASKS" if task not in ("", "0") else "SLURM_STEP_NUM_TASKS"
        tasks = environment.get(counted, "")
        if task.isdecimal() and tasks.isdecimal() and int(tasks) > 1:
            return cls(rank=int(task), num_apart=int(tasks))
        return cls()

    @property
    def name(self) -> str:
        """What tells this process from the others in what it prints; empty as one process."""
        if self.num_apart:
            return f"task {self.rank}"
        return f"rank {self.rank}" if self.kind else ""
