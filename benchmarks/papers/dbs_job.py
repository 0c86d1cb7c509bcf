"""DBS's experiment on the ranks of a job; started by `benchmarks.papers.dbs`."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

from benchmarks.papers import faults
from benchmarks.training.clusters import Cluster, Lengths
from benchmarks.training.job import Job, parser_of, run_on_ranks
from benchmarks.training.models import datasets

_LEARNING_RATE = 0.005
"""Digits, batches of 512, momentum 0.9: 0.95 within nine epochs; 0.01 and more jump about."""


class Fault(keras.callbacks.Callback):
    """Makes this rank lose some seconds in each step."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._seconds > 0:
            time.sleep(self._seconds)


class DbsJob(Job):
    """Every strategy trains its model for so many epochs, one epoch each in turns."""

    def train(self, with_faults: bool, seed: int) -> dict[str, Any]:
        """Seconds and accuracy of every epoch, by strategy."""
        self._build()
        _, (images, labels) = datasets.load_digits()
        steps, num_epochs = self._lengths.steps, self._lengths.rounds
        lost = np.zeros((num_epochs, self._collective.size))
        if with_faults:
            lost = faults.schedule(num_epochs, self._collective.size, seed)
            lost[0] = 0.0  # The first epoch tells how long an undisturbed even one is.
        for trainer in self._trainers.values():
            trainer.model.optimizer.learning_rate = _LEARNING_RATE
        seconds: dict[str, list[float]] = {name: [] for name in self._trainers}
        accuracy: dict[str, list[float]] = {name: [] for name in self._trainers}
        plans: dict[str, list[Any]] = {name: [] for name in self._trainers}
        even_seconds = 0.0
        for epoch in range(num_epochs):
            self._say(f"epoch {epoch + 1} of {num_epochs}, faults {np.round(lost[epoch], 2)}")
            mine = float(lost[epoch, self._collective.rank]) * even_seconds / steps
            names = list(self._trainers)
            for name in names[epoch % len(names) :] + names[: epoch % len(names)]:
                trainer = self._trainers[name]
                plans[name].append(trainer.batch_sizes)
                seconds[name].append(float(trainer.run(1, [Fault(mine)]).sum()))
                if self._collective.rank == 0:
                    guessed = np.argmax(trainer.model(images, training=False), axis=1)
                    accuracy[name].append(float(np.mean(guessed == labels)))
            if epoch == 0:
                first = np.array([seconds["even"][0]])
                even_seconds = float(self._collective.broadcast(first)[0])
        return {
            "global_batch_size": self._batch_size,
            "epoch_seconds": seconds,
            "accuracy": accuracy,
            "plans": plans,
            "lost": lost.tolist(),
        }


def main() -> None:
    """Measures on the ranks that it is started on."""
    parser = parser_of(__doc__)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    def measure(cluster: Cluster, lengths: Lengths) -> dict[str, Any]:
        job = DbsJob(cluster, options.model, options.strategies, lengths, None)
        return job.train(options.faults, options.seed)

    run_on_ranks(options, measure)


if __name__ == "__main__":
    main()
