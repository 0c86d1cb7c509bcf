"""Writes the journal of a simulated job, for pictures and examples that any machine makes alike.

    python -m benchmarks.simulated_journal run.jsonl                     dbs
    python -m benchmarks.simulated_journal run.jsonl --strategy even

Eight ranks on two hosts, the second of which takes 2.2 times as long; on one rank of the first
something comes and goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Controller
from hvd_dbs.balancing.measurement import typical_seconds
from hvd_dbs.job.journal import Journal, JournalPart
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.simulator import Conditions, Scenario
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.simulation import preset
from hvd_dbs.simulator.slowdowns import Neighbour

_START = 1_700_000_000.0
"""When the job began, seconds since 1970: always the same."""

HOSTS = ("node1",) * 4 + ("node2",) * 4

EXAMPLE = Scenario(
    name="example",
    global_batch_size=512,
    ranks=[
        AffineRanks(fixed_ms=5 * slowness, per_sample_ms=0.6 * slowness)
        for slowness in (1.0, 1.02, 1.04, 1.0, 2.2, 2.22, 2.24, 2.2)
    ],
    steps=2400,
    steps_per_epoch=60,
    communication=Communication(gradient_megabytes=4),
    disturbances=[Neighbour(ranks=(2,), from_step=1200, to_step=1700, slowdown=2.0)],
)


def simulated_job(
    scenario: Scenario,
    hosts: Sequence[str],
    strategy: str,
    input_seconds: NDArray[np.float64] | None = None,
) -> JournalPart:
    """What the journal of a job would say that decides at the end of each epoch, if at all.

    Args:
        scenario: What it runs on.
        hosts: Of its ranks.
        strategy: A preset.
        input_seconds: How long each rank waits for its data in a step; None: not at all.
    """
    conditions = Conditions.of(scenario)
    controller = Controller(
        preset(strategy, conditions),
        scenario.global_batch_size,
        scenario.bounds,
        num_rows=scenario.size,
    )
    waits = np.zeros(scenario.size) if input_seconds is None else input_seconds
    cluster, clock, entries = Cluster(conditions), _START, []
    for number in range(scenario.steps // scenario.steps_per_epoch):
        before = controller.plan
        stop = (number + 1) * scenario.steps_per_epoch
        piece = cluster.play(np.asarray(before.batch_sizes), stop)
        seen = cluster.measure([piece], unmeasured=scenario.steps_per_epoch)
        ready = piece.busy if piece.first is None else piece.first
        steps = piece.rule.seconds(piece.busy + waits, ready + waits)
        clock += float(steps.sum())
        step_seconds = typical_seconds(steps)
        controller.note_communication(step_seconds - float((seen.busy_seconds + waits).max()))
        decision = controller.decide(controller.observe(seen))
        entries.append(
            RoundEntry(
                epoch=number,
                step=scenario.steps_per_epoch,
                batch_sizes=before.batch_sizes,
                busy_seconds=tuple((seen.busy_seconds + waits).tolist()),
                cpu_load=tuple(seen.cpu_load.tolist()),
                step_seconds=step_seconds,
                plan_before=before.batch_sizes,
                plan=decision.plan.batch_sizes,
                reason=decision.reason,
                predicted_seconds=decision.predicted_seconds,
                first_bucket_seconds=tuple((seen.first_bucket_seconds + waits).tolist()),
                overlap_seconds=float(seen.overlap_seconds[0]),
                last_bucket_seconds=float(seen.last_bucket_seconds[0]),
                num_steps=scenario.steps_per_epoch,
                input_seconds=tuple(waits.tolist()),
                time=clock,
            )
        )
    job = JobEntry(tuple(hosts), strategy, scenario.global_batch_size, time=_START)
    return JournalPart(job, tuple(entries))


def main() -> None:
    """Writes the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="a new file")
    parser.add_argument("--strategy", default="dbs", help="one that decides by epoch, or never")
    options = parser.parse_args()
    part = simulated_job(EXAMPLE, HOSTS, options.strategy)
    journal = Journal(options.path)
    journal.check()
    journal.write(part.job)
    for entry in part.rounds:
        journal.write(entry)


if __name__ == "__main__":
    main()
