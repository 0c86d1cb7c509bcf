"""A job whose trainers take turns, one of them without what is wrong. Started by `verdicts`.

mpirun -np 2 python -m benchmarks.verdicts.job --cluster equal_pair --model digits --json FILE
"""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.training.clusters import Cluster, Lengths
from benchmarks.training.job import Job, parser_of, run_on_ranks
from benchmarks.training.neighbour_times import NeighbourTimes
from benchmarks.training.trainers import Trainer
from benchmarks.verdicts.cases import REPAIRED


class SlowInput:
    """A stage of a data pipeline that takes some seconds, or none.

    Args:
        samples: Of a batch that takes `seconds`, others in proportion; 0: each batch does.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.seconds = 0.0

    def __call__(self, *batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The same batch, later."""

        def waited(first: NDArray[Any]) -> NDArray[Any]:
            part = len(first) / self._samples if self._samples else 1.0
            time.sleep(self.seconds * part)
            return first

        first = tf.numpy_function(waited, [batch[0]], batch[0].dtype, stateful=True)
        first.set_shape(batch[0].shape)
        return first, *batch[1:]


class VerdictJob(Job):
    """Trainers that take turns, with what is wrong and without."""

    def measure(self, input_share: float, input_grows: bool) -> dict[str, Any]:
        """Seconds of all steps by round and trainer, as rank 0 saw them.

        Args:
            input_share: Mean steps for which the last rank waits for its data; 0: it does not.
            input_grows: Whether it waits as long for each sample, or for each batch.
        """
        slow = SlowInput(self._batch_size // self._collective.size if input_grows else 0)
        for trainer in self._trainers.values() if input_share else ():
            trainer.map(slow)
        self._build()
        seconds = 0.0
        if input_share and self._collective.rank == self._collective.size - 1:
            seconds = input_share
        if input_share:
            usual = np.array([np.median(self._trainers[REPAIRED].run())])
            seconds *= float(self._collective.broadcast(usual)[0])
        rounds: dict[str, list[list[float]]] = {name: [] for name in self._trainers}
        for number in range(-self._lengths.start_epochs, self._lengths.rounds):
            self._say(f"round {number + 1} of {self._lengths.rounds}")
            for name, trainer in self._trainers.items():
                slow.seconds = 0.0 if name == REPAIRED else seconds
                steps = self._turn(trainer)
                if number >= 0:
                    rounds[name].append(steps.tolist())
        self._say("done")
        return {"global_batch_size": self._batch_size, "rounds": rounds}

    def _turn(self, trainer: Trainer) -> NDArray[np.float64]:
        """Some epochs; where there is a neighbour, it is busy during the middle ones."""
        if self._neighbour is None:
            return trainer.run()
        cycle = self._lengths.cycle
        callbacks: list[keras.callbacks.Callback] = []
        if trainer.name != REPAIRED:
            callbacks.append(NeighbourTimes(self._neighbour, cycle.begin, cycle.end))
        return trainer.run(cycle.num_epochs, callbacks)


def main() -> None:
    """Measures on the ranks that it is started on."""
    parser = parser_of(__doc__)
    parser.add_argument("--input-share", type=float, default=0.0)
    parser.add_argument("--input-grows", action="store_true")
    options = parser.parse_args()

    def measure(cluster: Cluster, lengths: Lengths) -> dict[str, Any]:
        names = tuple(options.strategies)
        job = VerdictJob(
            cluster, options.model, names, lengths, options.neighbour, options.journals
        )
        return job.measure(options.input_share, options.input_grows)

    run_on_ranks(options, measure)


if __name__ == "__main__":
    main()
