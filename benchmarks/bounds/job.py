"""The ways round a bound, in turns on the ranks of a job. Started by `benchmarks.bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hvd_dbs.keras as hvd
from benchmarks.bounds.ways import WAYS
from benchmarks.training.clusters import Cluster, Lengths
from benchmarks.training.job import Job, parser_of, run_on_ranks
from benchmarks.training.models import Task
from benchmarks.training.trainers import BalancedTrainer, Data, Trainer


class BoundsJob(Job):
    """Every way trains an epoch in each round; the ranks' curves are measured between them."""

    def _make_trainers(
        self, names: Sequence[str], task: Task, data: Data, journals: Path | None
    ) -> dict[str, Trainer]:
        return {
            way.name: BalancedTrainer(
                way.name,
                task,
                hvd.Balancer(
                    self._batch_size,
                    way.strategy,
                    max_batch_size=[
                        way.bound or self._batch_size,
                        *[self._batch_size] * (hvd.size() - 1),
                    ],
                    micro_batch_size=way.micro_batch_size,
                    allow_partial=way.allow_partial,
                ),
                data,
            )
            for way in WAYS
        }


def main() -> None:
    """Measures on the ranks that it is started on."""
    options = parser_of(__doc__).parse_args()

    def measure(cluster: Cluster, lengths: Lengths) -> dict[str, Any]:
        return BoundsJob(cluster, options.model, options.strategies, lengths, None).run()

    run_on_ranks(options, measure)


if __name__ == "__main__":
    main()
