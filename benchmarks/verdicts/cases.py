"""Jobs and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

EVEN, ADAPTIVE, REPAIRED = "even", "adaptive", "best static"
"""Trainers that take turns in a job. The last one splits evenly too, where the job itself can
remove what is wrong; elsewhere another job on a healthy cluster is what is repaired."""


@dataclass(frozen=True)
class Case:
    """A job.

    Attributes:
        cause: Kinds of cause that are right (`hvd_dbs.cli.report.causes`), and on which ranks; no
            ranks: on all, or none.
        cluster: Of `benchmarks.training.clusters.CLUSTERS`.
        healthy: The same without what is wrong, or with a link twice as fast; empty: the job itself
            removes it.
        model: What is trained.
        input_share: Seconds for which the last rank waits for the data of an even split, in mean
            steps of the job.
        input_grows: Whether it waits as long for each sample, as for decoding; else for each batch,
            as for a request to a distant disk.
    """

    cause: tuple[str, tuple[int, ...]]
    cluster: str
    healthy: str = ""
    model: str = "digits"
    input_share: float = 0.0
    input_grows: bool = False

    @property
    def strategies(self) -> tuple[str, ...]:
        """What takes turns in the job."""
        return (EVEN, ADAPTIVE) if self.healthy else (EVEN, ADAPTIVE, REPAIRED)


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "one slow rank": Case(("ranks", (1,)), "slow_rank", healthy="equal_pair"),
        "a slow host": Case(("ranks", (2, 3)), "slow_host", healthy="equal_hosts"),
        "a neighbour that comes and goes": Case(("slow periods", (1,)), "neighbour_pair"),
        "slow samples": Case(("input", (1,)), "equal_pair", input_share=1.5, input_grows=True),
        "slow batches": Case(("input", (1,)), "equal_pair", input_share=1.5),
        "a limited link": Case(("communication", ()), "slow_link", "twice_the_link", "wide"),
        "nothing wrong": Case(("none", ()), "equal_pair"),
    }
)
