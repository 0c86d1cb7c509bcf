"""Random schedules of faults. Pure: the same seed gives the same schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass

NUM_SAMPLES = 1797
NUM_EPOCHS = 3
GLOBAL_BATCH_SIZE = 96
NUM_STEPS = NUM_EPOCHS * -(-NUM_SAMPLES // GLOBAL_BATCH_SIZE)

HOLD = (NUM_EPOCHS - 1, 4)
"""Epoch and step at which ranks wait until all faults have come: none may find the job ended."""

WARN_SECONDS = 2.0
"""After how long without progress a rank is named."""

JOURNAL = "decisions.journal"
"""What rank 0 notes of decisions, in the folder of the job."""

HOSTS_WITHOUT_LIBRARY = ("127.1", "h3")
"""Ranks on them do not use the native library, so that the others have to go on without it too."""

KINDS = (
    "kill another",
    "kill rank 0",
    "stop for 5 s",
    "add a host",
    "remove a host",
    "raise an exception",
    "slow to a tenth",
)

CUT_FOR_5_S, CUT, POWER_OFF = "cut for 5 s", "cut for good", "power off"
COME_BACK, SLOW_LINK = "power off and back", "slow link for 8 s"
NETWORK_KINDS = (CUT_FOR_5_S, CUT, POWER_OFF, COME_BACK, SLOW_LINK)
"""What happens to a whole host, where hosts are emulated."""

UNTIL_NAMED = "stop until named"
"""Until the watchdog has said which rank is stopped; no part of random schedules."""

FREEZE = "stop without end"
"""The watchdog has to end it (`Pace.abort_seconds`); no part of random schedules."""

SPEEDS = {"slow to 3 %": 0.03, "slow to 30 %": 0.3}
"""Of a host, for the whole job; steps then take all ranks time by their samples. No part of random
schedules."""

LEAVES_BELOW = 0.1
"""A speed below which the job is faster without a rank."""

SLOW_KINDS = ("stop for 5 s", "slow to a tenth", UNTIL_NAMED, FREEZE)
"""What a process lives through, or a watchdog ends."""

PASSING_KINDS = (CUT_FOR_5_S, SLOW_LINK)
"""What a host lives through."""


@dataclass(frozen=True)
class Fault:
    """One disturbance.

    Attributes:
        step: Steps that have been taken when it comes, those taken again included.
        kind: One of `KINDS`, `NETWORK_KINDS` or `SPEEDS`, or `UNTIL_NAMED`.
        pause_seconds: Waited after the steps, so that a fault can hit a job that is in recovery.
        replace: Whether a host that is lost is replaced by another one.
        choice: Which rank or host, a number from 0 to 1.
    """

    step: int
    kind: str
    pause_seconds: float
    replace: bool
    choice: float


@dataclass(frozen=True)
class Schedule:
    """What happens to one job.

    Attributes:
        seed: What it was made from.
        num_ranks: Ranks at the start.
        strategy: How the job balances.
        global_batch: Whether the global batch follows the number of ranks.
        batches_per_commit: Steps between two commits.
        faults: In the order in which they come.
        on_hosts: Whether each rank has an emulated host of its own.
    """

    seed: int
    num_ranks: int
    strategy: str
    global_batch: str
    batches_per_commit: int
    faults: tuple[Fault, ...]
    on_hosts: bool = False

    @property
    def has_speeds(self) -> bool:
        """Whether ranks have speeds, and leave where the job is faster without them."""
        return any(fault.kind in SPEEDS for fault in self.faults)


SLOW_HOSTS = Schedule(
    *(0, 3, "adaptive", "constant", 2),
    (Fault(0, "slow to 3 %", 0.0, False, 0.0), Fault(0, "slow to 30 %", 0.0, False, 0.4)),
)
"""The first of three hosts is to leave, the second to stay."""


def make_schedule(seed: int, on_hosts: bool = False) -> Schedule:
    """A schedule of one to three faults, of which two may come in a row.

    Args:
        seed: Any number.
        on_hosts: Whether hosts are emulated; the first fault is then one of a whole host.
    """
    source = random.Random(seed)
    first = NETWORK_KINDS if on_hosts else KINDS
    kinds = [first[seed % len(first)]]  # As many seeds as kinds have them all.
    more = (*KINDS, *NETWORK_KINDS) if on_hosts else KINDS
    kinds += source.choices(more, k=source.choice([0, 1, 1, 2]))
    num_ranks = 3 if len(kinds) > 1 else source.choice([2, 3])  # Somebody has to be left.
    steps = sorted(source.randrange(3, NUM_STEPS * 3 // 4) for _ in kinds)
    if len(kinds) > 1 and source.random() < 0.5:
        steps[1] = steps[0]  # In a row.
    faults = tuple(
        Fault(
            step,
            kind,
            source.choice([0.0, source.uniform(0.0, 2.0), source.uniform(2.0, 8.0)]),
            source.random() < 0.5,
            source.random(),
        )
        for step, kind in zip(steps, kinds, strict=True)
    )
    return Schedule(
        seed,
        num_ranks,
        source.choice(["dbs", "adaptive", "lb_bsp_gpu"]),
        source.choice(["constant", "constant", "per_rank"]),
        source.choice([1, 1, 4]),
        faults,
        on_hosts,
    )
