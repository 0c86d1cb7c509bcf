"""The parts, on one or two ranks: `mpirun -np 2 python -m scripts.gpu_check.job RESULTS PART ...`.

Each part returns its figures on rank 0, which adds them to RESULTS, a line for each part. What
fails on a rank fails the part on all of them.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hvd_dbs.keras as hvd
from hvd_dbs.cli.verify.entry import command as verify_command
from hvd_dbs.cli.verify.training import prepare
from hvd_dbs.comm.agreement import allgather_text
from hvd_dbs.comm.collective import connect
from scripts.gpu_check.bandwidth import measure_bandwidth
from scripts.gpu_check.costs import measure_allreduce, measure_clock
from scripts.gpu_check.curves import measure_curves
from scripts.gpu_check.operation_checks import check_operations
from scripts.gpu_check.overlap import train_with_several_buckets
from scripts.gpu_check.sharing import train_on_shared_device
from scripts.gpu_check.unequal import train_on_unequal_devices

Figures = Mapping[str, Any]


def _verify(device: str, *, small: bool) -> Figures:
    """`hvd-dbs verify`, as it is."""
    exit_code = verify_command.main(args=[], standalone_mode=False)
    if exit_code:
        raise RuntimeError(f"hvd-dbs verify ended with {exit_code}: see its findings above.")
    return {}


PARTS: dict[str, Callable[..., Figures]] = {
    "operations": check_operations,
    "bandwidth": measure_bandwidth,
    "allreduce": measure_allreduce,
    "clock": measure_clock,
    "sharing": train_on_shared_device,
    "unequal": train_on_unequal_devices,
    "overlap": train_with_several_buckets,
    "verify": _verify,
    "curves": measure_curves,
}
"""Each gets the device, "GPU" or "CPU", and whether to be small: to be tried, not measured."""


def main() -> None:
    """Runs the parts that are named on this rank."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    hvd.init()
    device = prepare()
    collective = connect()
    for name in options.parts:
        start, failure, figures = time.monotonic(), "", {}
        try:
            figures = dict(PARTS[name](device, small=options.small))
        except Exception:  # Whatever it is, it belongs into the report.
            failure = traceback.format_exc()
        failures = [text for text in allgather_text(collective, failure) if text]
        line = {
            "part": name,
            "status": "failed" if failures else "passed",
            "seconds": round(time.monotonic() - start, 1),
            **({"reason": failures[0]} if failures else {}),
            **figures,
        }
        if hvd.rank() == 0:
            with options.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
    hvd.shutdown()


if __name__ == "__main__":
    main()
