"""One job on one emulated cluster: every strategy takes turns in it. Started by `benchmarks.train`.

mpirun -np 4 python -m benchmarks.training.job --cluster mixed --model digits --json FILE
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from benchmarks.training import rank_curves, static_search
from benchmarks.training.clusters import (
    CLUSTERS,
    NAMES,
    PLAIN,
    SEEDS,
    STATIC,
    Cluster,
    Lengths,
)
from benchmarks.training.curve_measurement import CurveMeasurement
from benchmarks.training.models import TASKS, Task
from benchmarks.training.neighbour import RemoteNeighbour
from benchmarks.training.neighbour_times import NeighbourTimes
from benchmarks.training.trainers import BalancedTrainer, Data, Trainer, make_trainers
from hvd_dbs.comm.collective import connect
from hvd_dbs.job import step_file

_SECONDS_UNTIL_THROTTLED = 0.5


class Job:
    """All that is measured on one cluster with one model.

    Args:
        cluster: What the ranks are.
        model: Name of the task.
        names: The strategies.
        lengths: How long everything is.
        pipe: Where the neighbour listens, if there is one.
        journals: Folder for a journal of each strategy, if there are to be any.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: str,
        names: Sequence[str],
        lengths: Lengths,
        pipe: Path | None,
        journals: Path | None = None,
    ) -> None:
        self._cluster, self._lengths = cluster, lengths
        self._collective = connect()
        if self._collective.size != cluster.size:
            raise SystemExit(f"{self._collective.size} ranks started; expected {cluster.size}.")
        if (cluster.neighbour_of is not None) != (pipe is not None):
            raise SystemExit("--neighbour is for clusters with a neighbour, and for them only.")
        task = TASKS[model]
        self._batch_size = (lengths.samples_per_rank or task.samples_per_rank) * cluster.size
        data = tuple(
            tf.constant(array) for array in task.make_samples(lengths.steps * self._batch_size)
        )
        self._trainers = self._make_trainers(names, task, data, journals)
        self._curves = CurveMeasurement(
            self._collective, task, data, self._batch_size, lengths.curve_seconds
        )
        self._pipe = pipe
        self._neighbour: RemoteNeighbour | None = None
        self._found: dict[str, Any] = {}
        self._began = time.monotonic()

    def _make_trainers(
        self, names: Sequence[str], task: Task, data: Data, journals: Path | None
    ) -> dict[str, Trainer]:
        num_steps = self._lengths.plain_steps(self._cluster)
        return make_trainers(names, task, data, self._batch_size, num_steps, journals)

    def run(self) -> dict[str, Any]:
        """Everything measured, as plain data; times are rank 0's."""
        self._build()
        self._say("time curves")
        self._curves.choose_points()
        measured: dict[str, list[Any]] = {"calm": [], "busy": []}
        starts: dict[str, list[float]] = {}
        for name, trainer in self._trainers.items():
            if isinstance(trainer, BalancedTrainer) and name != STATIC:
                self._say(f"{name}: start")
                starts[name] = trainer.run(self._lengths.start_epochs).tolist()
        self._measure_curves(measured)
        if STATIC in self._trainers:
            self._search(measured)
        for trainer in self._trainers.values():
            if isinstance(trainer, BalancedTrainer):
                trainer.forget()
        rounds: dict[str, list[list[float]]] = {name: [] for name in self._trainers}
        plans: dict[str, list[Any]] = {name: [] for name in self._trainers}
        for i in range(self._lengths.rounds):
            self._say(f"round {i + 1} of {self._lengths.rounds}")
            for name in _rotated(list(self._trainers), i):
                rounds[name].append(self._train_round(self._trainers[name]).tolist())
                plans[name].append(self._trainers[name].batch_sizes)
            self._measure_curves(measured)
        overhead = self._overhead_rounds()
        self._say("done")
        busy: dict[str, Any] = {}
        for name, trainer in self._trainers.items():
            if isinstance(trainer, BalancedTrainer):
                batch_sizes, heard = trainer.busy_seconds()
                if len(heard):
                    busy[name] = {"batch_sizes": batch_sizes, "seconds": heard.tolist()}
        return {
            "global_batch_size": self._batch_size,
            "starts": starts,
            "rounds": rounds,
            "plans": plans,
            "overhead_rounds": overhead,
            "busy": busy,
            "curve_points": self._curves.points.tolist(),
            "curve_seconds": measured,
            **self._found,
        }

    def _build(self) -> None:
        """Builds all graphs; then ranks become unequal."""
        for trainer in self._trainers.values():
            self._say(f"{trainer.name}: building the graph")
            trainer.trace()
        # Looking through the graphs of all these models for garbage takes a second and more on a
        # slow rank. A job has one model.
        gc.collect()
        gc.freeze()
        self._begin_throttling()

    def _begin_throttling(self) -> None:
        """Until now ranks ran freely, so that imports and graphs do not take minutes."""
        path = os.environ.get("BENCHMARK_STEP_FILE")
        if path and self._collective.rank == 0:
            Path(path).write_text("1\n")
        time.sleep(_SECONDS_UNTIL_THROTTLED)
        # Pinned by now, each rank to its core.
        cores = self._collective.allgather(np.array([min(os.sched_getaffinity(0))]))[:, 0]
        if self._cluster.neighbour_of is not None and self._pipe is not None:
            core = int(cores[self._cluster.neighbour_of])
            self._neighbour = RemoteNeighbour(self._pipe, core, self._collective.rank == 0)

    def _measure_curves(self, measured: dict[str, list[Any]]) -> None:
        measured["calm"].append(self._curves.measure().tolist())
        if self._neighbour is not None:
            self._neighbour.run()
            measured["busy"].append(self._curves.measure().tolist())
            self._neighbour.pause()

    def _search(self, measured: dict[str, list[Any]]) -> None:
        self._say(f"{STATIC}: search")
        trainer = self._trainers[STATIC]
        if not isinstance(trainer, BalancedTrainer):
            raise TypeError(f"{STATIC} needs a balancer.")

        def trial(plan: static_search.Batches) -> tuple[float, NDArray[np.float64]]:
            trainer.set_plan(plan)
            trainer.forget()
            seconds = np.array([np.mean(self._train_round(trainer)[1:])])
            _, busy = trainer.busy_seconds()
            agreed = float(self._collective.broadcast(seconds)[0])
            return agreed, np.median(busy, axis=0) if len(busy) else np.ones(busy.shape[1])

        calm = self._table(measured["calm"][-1])
        if self._neighbour is None:
            found = [t.batch_sizes for n, t in self._trainers.items() if n in SEEDS]
            seeds = [tuple(batch_sizes) for batch_sizes in found if batch_sizes is not None]
            plan, seconds = static_search.search(trial, calm, self._lengths.searches, seeds)
        else:
            plans = static_search.compromises(calm, self._table(measured["busy"][-1]))
            seconds = {plan: [trial(plan)[0]] for plan in plans}
            plan = min(seconds, key=lambda plan: seconds[plan][0])
        trainer.set_plan(plan)
        self._found["searched"] = [
            {"batch_sizes": plan, "step_seconds": times} for plan, times in seconds.items()
        ]

    def _table(self, seconds: Any) -> NDArray[np.float64]:
        return rank_curves.table(self._curves.points, np.array(seconds), self._batch_size)

    def _train_round(self, trainer: Trainer) -> NDArray[np.float64]:
        """An epoch; with a neighbour, a cycle of some epochs in which it comes and goes."""
        if self._neighbour is None:
            return trainer.run()
        cycle = self._lengths.cycle
        times = NeighbourTimes(self._neighbour, cycle.begin, cycle.end)
        return trainer.run(cycle.num_epochs, [times])

    def _overhead_rounds(self) -> dict[str, list[list[float]]]:
        """On equal ranks, what is compared to one per cent takes some more turns."""
        names = [name for name in (PLAIN, "even", "adaptive") if name in self._trainers]
        rounds: dict[str, list[list[float]]] = {name: [] for name in names}
        if self._cluster.is_equal and PLAIN in names:
            self._say(f"overhead: {self._lengths.overhead_rounds} rounds of {', '.join(names)}")
            for i in range(self._lengths.overhead_rounds):
                for name in _rotated(names, i):
                    rounds[name].append(self._trainers[name].run().tolist())
        return rounds

    def _say(self, text: str) -> None:
        if self._collective.rank == 0:
            print(f"  {time.monotonic() - self._began:4.0f} s: {text}", flush=True)


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options that `benchmarks.train.Runner` gives to every job."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--cluster", choices=CLUSTERS, required=True)
    parser.add_argument("--model", choices=TASKS, required=True)
    parser.add_argument("--strategies", nargs="+", choices=NAMES, required=True)
    parser.add_argument("--lengths", required=True, help="fields of Lengths, as JSON")
    parser.add_argument("--neighbour", type=Path, help="the pipe that the neighbour listens to")
    parser.add_argument("--journals", type=Path, help="folder for a journal of each strategy")
    parser.add_argument("--json", type=Path, required=True, help="where to write what was measured")
    parser.add_argument("--verbose", action="store_true", help="tell every change of plan")
    return parser


def run_on_ranks(
    options: argparse.Namespace, measure: Callable[[Cluster, Lengths], dict[str, Any]]
) -> None:
    """Prepares this rank, measures, writes what rank 0 has measured, and ends the process."""
    # Ranks become unequal when all graphs are built, not with the first step of the first model.
    path = os.environ.pop(step_file.VARIABLE, None)
    if path:
        os.environ["BENCHMARK_STEP_FILE"] = path
    logging.basicConfig(format="    %(message)s")
    # Many models look like one that is traced again and again.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    logging.getLogger("hvd_dbs").setLevel(logging.INFO if options.verbose else logging.ERROR)
    hvd.init()
    lengths = Lengths(**json.loads(options.lengths))
    cluster = CLUSTERS[options.cluster]
    measured = measure(cluster, lengths)
    if hvd.rank() == 0:
        head = {
            "cluster": options.cluster,
            "speeds": cluster.speeds,
            "neighbour_of": cluster.neighbour_of,
            "model": options.model,
            "lengths": dataclasses.asdict(lengths),
        }
        options.json.write_text(json.dumps({**head, **measured}) + "\n")
    hvd.shutdown()
    # Taking all the graphs apart would last a minute on a rank that is throttled.
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Measures on the ranks that it is started on."""
    options = parser_of(__doc__).parse_args()

    def measure(cluster: Cluster, lengths: Lengths) -> dict[str, Any]:
        strategies = tuple(options.strategies)
        if not options.journals:
            strategies = cluster.strategies(strategies)
        return Job(
            cluster, options.model, strategies, lengths, options.neighbour, options.journals
        ).run()

    run_on_ranks(options, measure)


if __name__ == "__main__":
    main()
