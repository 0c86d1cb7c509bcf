"""Where the ranks of a job run."""

from __future__ import annotations

import os
import socket

from hvd_dbs.balancing.place import Place
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.host.cores import num_usable_cores
from hvd_dbs.host.device_kind import device_kind, uses_gpu


def own_place() -> Place:
    """Where this process runs, with all names of its host."""
    return Place(
        host=socket.gethostname(),
        device=device_kind(),
        launcher_name=os.environ.get("HOROVOD_HOSTNAME", ""),
        cores=0.0 if uses_gpu() else _own_cores(),
    )


def places_by_rank(collective: Collective) -> list[Place]:
    """Where every rank runs, by rank. Collective."""
    place = own_place()
    row = [place.host, place.device, place.launcher_name, place.cores]
    return [Place(*row) for row in agreement.allgather_json(collective, row)]


def _own_cores() -> float:
    """Cores' worth of time of this rank, if the ranks of its host share what is not bound."""
    import horovod.tensorflow as hvd

    shared = (os.cpu_count() or 1) / max(hvd.local_size(), 1)
    return float(min(num_usable_cores(), shared))
