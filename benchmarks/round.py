"""What a round of decision costs a rank: waited for, and made beside a step.

    scripts/bench.sh round                      on 2, 4 and 8 ranks
    mpirun -np 2 python -m benchmarks.round     on these ranks

Both ways take turns, strategy by strategy. Between the rounds every rank is busy for a while, the
last one longest, and all meet as they do in a training step. What is told is the time that the
main thread of a rank spends on a round: the median over rounds, and of the ranks the slowest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.cluster import collective as job
from hvd_dbs.cluster.decision import DecisionRound

_STRATEGIES = ("dbs", "lb_bsp_cpu", "lb_bsp_gpu", "cannikin", "adaptive")
_SAMPLES_PER_RANK = 64
_STEP_SECONDS, _SPREAD = 0.004, 0.5
_WARM_UP = 5
_WORK = bytes(100_000)


class Cost:
    """Adds up what a rank spends on a round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._this_round = 0.0

    def of(self, part: Callable[[], object]) -> None:
        """Does a part of a round."""
        start = time.perf_counter()
        part()
        self._this_round += time.perf_counter() - start

    def end_round(self) -> None:
        """The round is over."""
        self.seconds.append(self._this_round)
        self._this_round = 0.0


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="of each strategy, each way")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args()
    hvd.init()
    collective = job.connect()
    rows = list(_measure(collective, options.rounds))
    if collective.rank == 0:
        print(f"\n**A round of decision on {collective.size} ranks, ms (median; 90 %)**\n")
        print("| strategy | waited for | beside a step |\n|---|---:|---:|")
        for row in rows:
            waited, beside = ("{:.2f}; {:.2f}".format(*row[way]) for way in ("waits", "beside"))
            print(f"| `{row['strategy']}` | {waited} | {beside} |")
        if options.json:
            options.json.write_text(json.dumps({"ranks": collective.size, "rounds": rows}) + "\n")
    hvd.shutdown()


def _measure(collective: job.Collective, num_rounds: int) -> Iterator[dict[str, object]]:
    for name in _STRATEGIES:
        controllers = [_controller(name, collective.size) for _ in range(2)]
        costs = (Cost(), Cost())
        for _ in range(_WARM_UP + num_rounds):
            _round_waited_for(collective, controllers[0], costs[0])
            _round_beside_a_step(collective, controllers[1], costs[1])
        ways = zip(("waits", "beside"), (_slowest(collective, cost) for cost in costs), strict=True)
        yield {"strategy": name, **dict(ways)}


def _controller(name: str, size: int) -> Controller:
    bounds = Bounds.of(size, minimum=1)
    return Controller(strategies.resolve(name), _SAMPLES_PER_RANK * size, bounds)


def _round_waited_for(collective: job.Collective, controller: Controller, cost: Cost) -> None:
    measurement = _step(collective, controller)
    cost.of(lambda: DecisionRound(collective, controller, lambda: measurement).finish())
    cost.end_round()


def _round_beside_a_step(collective: job.Collective, controller: Controller, cost: Cost) -> None:
    measurement = _step(collective, controller)
    begun: list[DecisionRound] = []
    cost.of(lambda: begun.append(DecisionRound(collective, controller, lambda: measurement)))
    _step(collective, controller)
    cost.of(begun[0].finish)
    cost.end_round()


def _step(collective: job.Collective, controller: Controller) -> Measurement:
    """Busy for as long as a rank of this speed would be; then all meet."""
    slower = 1 + _SPREAD * collective.rank / max(collective.size - 1, 1)
    share = controller.plan.batch_sizes[collective.rank] / _SAMPLES_PER_RANK
    end = time.perf_counter() + _STEP_SECONDS * slower * share
    while time.perf_counter() < end:
        hashlib.sha256(_WORK)  # Like TensorFlow, without Python's lock.
    hvd.allreduce(np.zeros(1), op=hvd.Sum, name="benchmark.step")
    return Measurement.of(
        [controller.plan.batch_sizes[collective.rank]],
        [_STEP_SECONDS * slower * share],
        num_steps=[1.0],
        cpu_load=[0.1],
        memory_load=[0.3],
    )


def _slowest(collective: job.Collective, cost: Cost) -> tuple[float, float]:
    rows = collective.allgather(np.array(cost.seconds[_WARM_UP:])).max(axis=0)
    return float(1000 * np.median(rows)), float(1000 * np.percentile(rows, 90))


if __name__ == "__main__":
    main()
