"""Runs the comparison with one paper:  scripts/bench.sh papers PAPER [option]...

    dbs                 DBS: three slow ranks and a fast one, with --faults its fault generator
    lb_bsp              LB-BSP: a neighbour comes and goes beside steps of half a second
    record_loads        speeds and loads of a shared host, into a CSV file, for:
    prediction          NARX against other forecasts, at the horizon of a plan
    cannikin            Cannikin: gradients over a slow link
    dynamic_minibatch   Dynamic Mini-batch SGD: the ramp on a noisy quadratic, exactly
    ratios              OmniLearn's and Cannikin's ratios, in the simulator

Each prints rows "published / here" and keeps them in build/papers. PAPER --help has the options.
"""

from __future__ import annotations

import importlib
import sys

PAPERS = ("dbs", "lb_bsp", "record_loads", "prediction", "cannikin", "dynamic_minibatch", "ratios")


def main() -> int:
    """Hands the other arguments to the module of the paper."""
    if len(sys.argv) < 2 or sys.argv[1] not in PAPERS:
        print(__doc__, file=sys.stderr)
        return 2
    paper = sys.argv.pop(1)
    sys.argv[0] = f"bench.sh papers {paper}"
    importlib.import_module(f"benchmarks.papers.{paper}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
