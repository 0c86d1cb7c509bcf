"""Cannikin's regime on the ranks of a job; started by `benchmarks.papers.cannikin`."""

from __future__ import annotations

import time
from typing import Any

import keras

from benchmarks.training.clusters import Cluster, Lengths
from benchmarks.training.job import Job, parser_of, run_on_ranks


class Reading(keras.callbacks.Callback):
    """Makes this rank take so many seconds to read each sample, before its step computes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loop = self.model.optimizer.balancer.loop
        time.sleep(self._seconds * loop.samples_in_step(batch))


class CannikinJob(Job):
    """Every strategy trains its model for so many epochs, one epoch each in turns."""

    def train(self, reading_seconds: float) -> dict[str, Any]:
        """Seconds of every step, and plans, by strategy and epoch."""
        self._build()
        reading = Reading(reading_seconds if self._collective.rank == 0 else 0.0)
        seconds: dict[str, list[Any]] = {name: [] for name in self._trainers}
        plans: dict[str, list[Any]] = {name: [] for name in self._trainers}
        for epoch in range(self._lengths.rounds):
            self._say(f"epoch {epoch + 1} of {self._lengths.rounds}")
            names = list(self._trainers)
            for name in names[epoch % len(names) :] + names[: epoch % len(names)]:
                seconds[name].append(self._trainers[name].run(1, [reading]).tolist())
                plans[name].append(self._trainers[name].batch_sizes)
        return {"global_batch_size": self._batch_size, "rounds": seconds, "plans": plans}


def main() -> None:
    """Measures on the ranks that it is started on."""
    parser = parser_of(__doc__)
    parser.add_argument("--reading", type=float, required=True)
    options = parser.parse_args()

    def measure(cluster: Cluster, lengths: Lengths) -> dict[str, Any]:
        job = CannikinJob(
            cluster, options.model, options.strategies, lengths, None, options.journals
        )
        return job.train(options.reading)

    run_on_ranks(options, measure)


if __name__ == "__main__":
    main()
