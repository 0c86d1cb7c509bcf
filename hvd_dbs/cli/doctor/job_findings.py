"""What `hvd-dbs doctor` concludes from what all ranks of a job see; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hvd_dbs.cli.doctor.facts import NATIVE, NATIVE_INTERFACE, Facts
from hvd_dbs.cli.doctor.finding import Finding, Level, merge
from hvd_dbs.cli.doctor.findings import of_rank
from hvd_dbs.comm.introduction import Introduction, differences
from hvd_dbs.rank_names import name_places, name_ranks


def of_job(facts: Sequence[Facts]) -> list[Finding]:
    """What is to be said of all ranks, from the facts of each."""
    hosts = [one.host for one in facts]
    ranks = [Introduction(one.host, (), one.versions) for one in facts]
    findings = merge([of_rank(one) for one in facts], hosts)
    return [*findings, *of_versions(ranks), *_of_collectives(facts), *_of_hosts(facts)]


def of_versions(ranks: Sequence[Introduction]) -> Iterator[Finding]:
    """What is to be said where not all ranks have the same versions.

    Args:
        ranks: By rank, with `Facts.versions`.
    """
    for name, text in differences(ranks).items():
        if name == NATIVE:
            # Hosts without a GPU need no kernels for one.
            built = {one.versions.get(name, "").rpartition(", ")[0] for one in ranks}
            if len(built) == 1:
                yield Finding("ok", text)
            else:
                fix = "install the same hvd_dbs with its native library on all hosts"
                yield Finding("warning", f"{text}; training uses it on no rank", fix)
            continue
        fix = "install the same hvd_dbs on all hosts"
        is_ours = name in ("hvd_dbs", NATIVE_INTERFACE)
        # Only these talk with each other.
        level: Level = "problem" if is_ours or name == "Horovod" else "warning"
        yield Finding(level, text, fix if is_ours else f"install the same {name} on all hosts")


def _of_collectives(facts: Sequence[Facts]) -> Iterator[Finding]:
    on_gpu = [
        rank for rank, one in enumerate(facts) if one.num_gpus and "NCCL" in one.horovod_parts
    ]
    if 0 < len(on_gpu) < len(facts):
        places = name_places(on_gpu, [one.host for one in facts])
        text = f"only {places} can run collective operations on GPUs, which others cannot join"
        fix = "hide the GPUs from all ranks, or use a Horovod without GPU operations: docs/gpus.md"
        yield Finding("warning", text, fix)  # A script may hide them, or start fewer ranks.


def _of_hosts(facts: Sequence[Facts]) -> Iterator[Finding]:
    hosts: dict[str, list[int]] = {}
    for rank, one in enumerate(facts):
        hosts.setdefault(one.host, []).append(rank)
    for host, ranks in hosts.items():
        # A rank on its own may have any number.
        names = f"{name_ranks(ranks)} on " if len(facts) > 1 else ""
        yield from _of_host(host, names, [facts[rank] for rank in ranks])


def _of_host(host: str, names: str, facts: Sequence[Facts]) -> Iterator[Finding]:
    cores = frozenset[int]().union(*(one.cores for one in facts))
    idle = frozenset[int]().union(*(one.launcher_cores for one in facts)) - cores
    # What ranks of one container have, they have together.
    quota = sum({one.container: one.quota for one in facts}.values())
    usable = min(len(cores), quota)
    limit = f" by the limit of a container, of {len(cores)}" if quota < len(cores) else ""
    kinds = dict.fromkeys(one.device for one in facts if one.device)
    device = f"; kind of device: {', '.join(kinds)}" if kinds else ""
    yield Finding("ok", f"{host}: {names}{_cores(usable)}{limit}{device}")
    # Open MPI binds by itself; what Slurm runs its processes from may have the whole host.
    if facts[0].launch.kind == "Open MPI" and idle and quota > len(cores):
        text = f"{host}: the ranks are bound to cores, and leave {_cores(len(idle))} idle"
        yield Finding("warning", text, "mpirun --bind-to none")
    num_threads = sum(_num_threads(one) for one in facts)
    if any(one.num_gpus for one in facts):
        return
    if len(facts) > max(usable, 1):
        text = f"{host}: {len(facts)} ranks have {_cores(usable)} together"
        yield Finding("warning", text, f"start no more than {max(1, int(usable))} of them there")
    elif num_threads > max(usable, len(facts)):
        each = max(1, int(usable) // len(facts))
        text = f"{host}: TensorFlow starts {num_threads} threads on {_cores(usable)}"
        fix = f"set TF_NUM_INTRAOP_THREADS={each} and OMP_NUM_THREADS={each} on all ranks"
        yield Finding("warning", text, fix)


def _cores(number: float) -> str:
    return f"{number:g} core{'' if number == 1 else 's'}"


def _num_threads(facts: Facts) -> int:
    given = facts.variables.get("TF_NUM_INTRAOP_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else len(facts.cores)
