"""Facts that `hvd-dbs doctor` finds, and what it says against them."""

from __future__ import annotations

from dataclasses import replace

from hvd_dbs.cli.doctor.facts import Facts, Package
from hvd_dbs.cli.doctor.finding import Finding
from hvd_dbs.cli.doctor.findings import NEEDED
from hvd_dbs.cli.doctor.launch import Launch
from hvd_dbs.keras_stack import KerasStack

FINE = Facts(
    packages={name: Package(least) for name, (least, _) in NEEDED.items()}
    | {"hvd_dbs": Package("0.1.0")},
    horovod_parts=("MPI", "Gloo"),
    mpi="Open MPI v4.1.8",
    mpi_files=("/lib/libmpi.so.40",),
    mpirun="mpirun (Open MPI) 4.1.8",
    has_horovodrun=True,
    host="node1",
    cores=frozenset(range(4)),
    launcher_cores=frozenset(range(4)),
)
LEGACY = KerasStack(uses_legacy_keras=True, has_legacy_keras=True)
GPUS = replace(FINE, num_gpus=2, native_has_cuda=True, horovod_parts=("MPI", "Gloo", "NCCL"))

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def having(facts: Facts, **packages: Package) -> Facts:
    return replace(facts, packages={**facts.packages, **packages})


def under(facts: Facts, kind: str) -> Facts:
    return replace(facts, launch=Launch(kind, 0, 2))


def not_fine(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in findings if one.level != "ok"]
