"""The emulated clusters, the strategies that are compared, and how long each is run."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "plain Horovod"
DBS = "dbs"
AGAIN = "dbs again"
"""`dbs` with a model of its own, which shows by how much two of the same differ."""
STATIC = "best static"
DYNAMIC = (DBS, "lb_bsp_cpu", "lb_bsp_gpu", "omnilearn", "cannikin", "adaptive")
STRATEGIES = (PLAIN, "even", STATIC, *DYNAMIC)
NAMES = (*STRATEGIES, AGAIN)
"""All that can be compared: the strategies, and a control."""
SEEDS = (DBS, "adaptive")
"""Strategies whose first plans are tried as static ones too."""
FEW_STRATEGIES = (PLAIN, STATIC, DBS, "adaptive")


@dataclass(frozen=True)
class Cluster:
    """Ranks of this machine and how fast each one is.

    Attributes:
        speeds: Share of a core, by rank.
        neighbour_of: Rank on whose core a busy process starts and stops; None: there is none.
        hosts: Options of scripts/hosts.sh, where ranks have emulated hosts; its speeds are these.
    """

    speeds: tuple[float, ...]
    neighbour_of: int | None = None
    hosts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.speeds)

    @property
    def is_equal(self) -> bool:
        """Whether an even split is the best at all times."""
        return len(set(self.speeds)) == 1 and self.neighbour_of is None

    def strategies(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `wanted` that say something here, in the order of `NAMES`.

        Our own even split tells what our parts cost where nothing is to be gained; elsewhere
        plain Horovod stands for it. On equal ranks the even split is the best static one.
        """
        left_out = STATIC if self.is_equal else "even"
        return tuple(name for name in NAMES if name in wanted and name != left_out)


CLUSTERS = {
    "equal": Cluster((1, 1, 1, 1)),
    "mixed": Cluster((1, 1, 0.5, 0.25)),
    "pair": Cluster((1, 0.3)),
    "three": Cluster((1, 0.7, 0.4)),
    "neighbour": Cluster((1, 1, 1, 1), neighbour_of=1),
    "straggler": Cluster((1, 1, 1, 0.1)),
    "hosts": Cluster(
        (1, 1, 0.5, 1),
        hosts=("--hosts", "a:2,b:1,c:1", "--slow", "b=0.5", "--link", "c=100mbit"),
    ),
    "link": Cluster((1, 0.5), hosts=("--hosts", "a:1,b:1", "--slow", "b=0.5", "--link", "b=1gbit")),
    "fast_rank": Cluster((1, 0.25, 0.25, 0.25)),
    "equal_pair": Cluster((1, 1)),
    "dbs": Cluster((1 / 3, 1 / 3, 1 / 3, 1)),
    "neighbour_pair": Cluster((1, 1), neighbour_of=1),
    "slow_rank": Cluster((1, 0.4)),
    "slow_host": Cluster(
        (0.5, 0.5, 0.25, 0.25), hosts=("--hosts", "a:2,b:2", "--slow", "a=0.5", "--slow", "b=0.25")
    ),
    "equal_hosts": Cluster(
        (0.5, 0.5, 0.5, 0.5), hosts=("--hosts", "a:2,b:2", "--slow", "a=0.5", "--slow", "b=0.5")
    ),
    "slow_link": Cluster((1, 1), hosts=("--hosts", "a:1,b:1", "--link", "b=1gbit")),
    "twice_the_link": Cluster((1, 1), hosts=("--hosts", "a:1,b:1", "--link", "b=2gbit")),
}
REPORTED = ("equal", "mixed", "pair", "three", "neighbour", "straggler")
QUICK = ("equal_pair", "pair")
REPLAYED = ("mixed", "three", "straggler", "neighbour_pair", "hosts")
"""Unequal for good, with curves of several fixed parts, noisy, with a neighbour, on a slow link."""


@dataclass(frozen=True)
class Lengths:
    """How long each part of a job is.

    Attributes:
        rounds: Interleaved rounds; in each every strategy trains for an epoch.
        steps: Steps of an epoch.
        start_epochs: Epochs of each strategy's start, from an even split on.
        overhead_rounds: Further rounds on equal ranks, of what is compared to 1 % there.
        curve_seconds: For each point of the ranks' time curves, in each round.
        searches: Moves of the search for the best static split.
        samples_per_rank: Samples of the global batch for each rank; 0: as many as the model says.
    """

    rounds: int = 5
    steps: int = 12
    start_epochs: int = 3
    overhead_rounds: int = 10
    curve_seconds: float = 0.8
    searches: int = 4
    samples_per_rank: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.steps < 8 or self.start_epochs < 1:
            raise ValueError(
                f"{self} is too short to say anything; expected rounds >= 1, steps >= 8, "
                f"start_epochs >= 1."
            )

    @property
    def cycle(self) -> Cycle:
        """Where in a cycle the neighbour starts and stops."""
        return Cycle(self.steps // 4, 2 * self.steps + self.steps // 4, 4)

    def plain_steps(self, cluster: Cluster) -> int:
        """Steps of an epoch of plain Horovod: fewer where they are long."""
        if cluster.is_equal or cluster.neighbour_of is not None:
            return self.steps
        return max(6, self.steps // 2)


@dataclass(frozen=True)
class Cycle:
    """A round with a neighbour: calm, busy, calm again.

    Attributes:
        begin: Steps until the neighbour starts.
        end: Steps until it stops.
        num_epochs: Epochs of the cycle.
    """

    begin: int
    end: int
    num_epochs: int
