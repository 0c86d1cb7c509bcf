"""What deciding costs the thread that trains: waited for, and beside the steps.

    scripts/bench.sh round                      on 2, 4 and 8 ranks
    mpirun -np 2 python -m benchmarks.round     on these ranks

Both ways take turns, strategy by strategy. In each step every rank is busy for a while, the last
one longest, and all meet as they do in training. What is told is the time that the main thread
of a rank spends on a round: the median over rounds, and of the ranks the slowest. *Counted* is what
a job takes a round beside the steps to cost: that, and its share of the processor time that the
other thread took, where the rank's cores have no time to spare. Then `adaptive` on equal ranks as
it is in a job: decisions where it wants them, steps compared between. The last line is the cost of
the change signal that travels with the gradients: steps with and without it in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.comm.collective import Collective, connect
from hvd_dbs.job.round_schedule import RoundSchedule
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce

_STRATEGIES = ("dbs", "lb_bsp_cpu", "lb_bsp_gpu", "cannikin", "adaptive")
_SAMPLES_PER_RANK = 64
_STEP_SECONDS, _SPREAD = 0.02, 0.5
_STEPS_IN_ROUND, _WARM_UP = 3, 5
_PEACE_STEPS = 300
_NUM_GRADIENTS, _NUM_REDUCTIONS = 20, 1000
_WORK = bytes(100_000)


class Training:
    """Steps without a network, and what balancing does after each of them.

    Args:
        collective: The job.
        strategy: Its name.
        every: Steps in a round; None: as the strategy wants.
        spread: By how much the last rank is slower than the first.
    """

    def __init__(
        self, collective: Collective, strategy: str, every: int | None, spread: float = _SPREAD
    ) -> None:
        size = collective.size
        self._rank = collective.rank
        self._slowness = 1 + spread * collective.rank / max(size - 1, 1)
        bounds = Bounds.of(size, minimum=1)
        self._controller = Controller(
            strategies.resolve(strategy, every), _SAMPLES_PER_RANK * size, bounds
        )
        self._clock = StepClock()
        self.rounds = RoundSchedule(collective, self._controller, self._clock)
        self.rounds.begin_training()
        self._batch_sizes = self._controller.plan.batch_sizes
        self.num_decisions = 0

    def step(self) -> None:
        """Busy for as long as a rank of this speed would be; then all meet."""
        share = self._batch_size / _SAMPLES_PER_RANK
        end = time.perf_counter() + _STEP_SECONDS * self._slowness * share
        while time.perf_counter() < end:
            hashlib.sha256(_WORK)  # Like TensorFlow, without Python's lock.
        gradient = tf.zeros([1])
        ready = self._clock.ready([gradient])
        travelling = [gradient, self._clock.signal()]
        reduced, signal = weighted_allreduce(
            travelling,
            self._batch_size,
            total_weight=sum(self._batch_sizes),
            name="benchmark.step",
        )
        self._clock.back(ready, [reduced], tf.constant(self._batch_size))
        self._clock.receive_signal(signal)

    def balance(self) -> float:
        """What comes after a step; seconds that it took."""
        start = time.perf_counter()
        agreed = self.rounds.end_steps(1, 1, self._batch_size)
        seconds = time.perf_counter() - start
        if agreed is not None:
            self.num_decisions += 1
            self._batch_sizes = agreed.decision.plan.batch_sizes
        return seconds

    def decide(self) -> float:
        """A round at once; seconds that it took."""
        start = time.perf_counter()
        agreed = self.rounds.decide(self._batch_size)
        seconds = time.perf_counter() - start
        self._batch_sizes = agreed.decision.plan.batch_sizes
        return seconds

    def end(self) -> None:
        """All ranks are through."""
        self.rounds.finish()
        self.rounds.end_training()

    @property
    def _batch_size(self) -> int:
        return self._batch_sizes[self._rank]


def main() -> None:
    """Measures on the ranks that it is started on; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50, help="of each strategy, each way")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args()
    hvd.init()
    collective = connect()
    rows = list(measure(collective, options.rounds))
    peace, num_decisions = _peace(collective)
    silent, telling = _travelling(collective)
    if collective.rank == 0:
        print(f"\n**A round of decision on {collective.size} ranks, ms (median; 90 %)**\n")
        print("| strategy | waited for | beside the steps | counted |\n|---|---:|---:|---:|")
        for row in rows:
            waited, beside = ("{:.2f}; {:.2f}".format(*row[way]) for way in ("waits", "beside"))
            print(f"| `{row['strategy']}` | {waited} | {beside} | {row['counted']:.2f} |")
        print(
            f"\n`adaptive` on equal ranks: {peace:.3f} ms a step, {num_decisions} decisions and "
            f"the comparisons of {_PEACE_STEPS} steps.\n"
            f"{_NUM_GRADIENTS} gradients, ms: {silent:.3f} without the change signal, "
            f"{telling:.3f} with it."
        )
        if options.json:
            signal = {"silent": silent, "telling": telling}
            figures = {"ranks": collective.size, "rounds": rows, "peace": peace, "signal": signal}
            options.json.write_text(json.dumps(figures) + "\n")
    hvd.shutdown()


def measure(collective: Collective, num_rounds: int) -> Iterator[dict[str, Any]]:
    """What a round of each strategy costs both ways: median and 90th percentile, ms. Collective."""
    for name in _STRATEGIES:
        waiting = Training(collective, name, every=1)
        going_on = Training(collective, name, every=_STEPS_IN_ROUND)
        waits, beside, counted = [], [], []
        for _ in range(_WARM_UP + num_rounds):
            waiting.step()
            waits.append(waiting.decide())
            seconds = 0.0
            for _ in range(_STEPS_IN_ROUND):
                going_on.step()
                seconds += going_on.balance()
            beside.append(seconds)
            counted.append(going_on.rounds.overhead.round_seconds)
        for training in (waiting, going_on):
            training.end()
        yield {
            "strategy": name,
            "waits": _slowest(collective, waits),
            "beside": _slowest(collective, beside),
            "counted": _slowest(collective, counted)[0],
        }


def _peace(collective: Collective) -> tuple[float, int]:
    """Mean milliseconds a step of the slowest rank where nothing happens, and decisions."""
    training = Training(collective, "adaptive", None, spread=0.0)
    seconds = []
    for _ in range(_PEACE_STEPS):
        training.step()
        seconds.append(training.balance())
    training.end()
    total = collective.allgather(np.array([sum(seconds)])).max()
    return 1000 * float(total) / _PEACE_STEPS, training.num_decisions


def _travelling(collective: Collective) -> tuple[float, float]:
    """Median ms of a reduction of gradients without and with the signal, on the slowest rank."""
    gradients = [tf.ones([1000])] * _NUM_GRADIENTS
    steps = [_reduction(has_signal) for has_signal in (False, True)]
    seconds: list[list[float]] = [[], []]
    for number in range(_NUM_REDUCTIONS):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            steps[which](*gradients)
            seconds[which].append(time.perf_counter() - start)
    silent, telling = (_slowest(collective, one)[0] for one in seconds)
    return silent, telling


def _reduction(has_signal: bool) -> Callable[..., tf.Tensor]:
    clock = StepClock()

    @tf.function
    def step(*gradients: tf.Tensor) -> tf.Tensor:
        ready = clock.ready(gradients)
        signals = [clock.signal()] if has_signal else []
        name = f"benchmark.signal.{has_signal}"
        means = weighted_allreduce([*gradients, *signals], 1.0, total_weight=hvd.size(), name=name)
        clock.back(ready, means[: len(gradients)], tf.constant(1))
        for mean in means[len(gradients) :]:
            clock.receive_signal(mean)
        return means[0]

    return step


def _slowest(collective: Collective, seconds: list[float]) -> tuple[float, float]:
    rows = collective.allgather(np.array(seconds[_WARM_UP:])).max(axis=0)
    return float(1000 * np.median(rows)), float(1000 * np.percentile(rows, 90))


if __name__ == "__main__":
    main()
