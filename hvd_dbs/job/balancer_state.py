"""What a balancer keeps from one run of a job to the next, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvd_dbs.balancing.inheritance import RankMemory, Slot
from hvd_dbs.sampling import Cursor

FORMAT = 3


@dataclass(frozen=True)
class SavedRank:
    """One rank of the job that was saved.

    Attributes:
        slot: Its host, and its number on it.
        batch_size: Its samples in a full step.
        model: Its time model's memory, nested lists by name; None: not saved.
        device: Its kind of device; empty: not known.
    """

    slot: Slot
    batch_size: int
    model: dict[str, Any] | None = None
    device: str = ""


@dataclass(frozen=True)
class BalancerState:
    """A job's balancing, without anything that ties it to the ranks of one run.

    Attributes:
        strategy: Name of the strategy.
        ranks: The ranks, in their order.
        cursor: Where training stands.
        data: What the order of the samples depends on, by name; None: there was no data set.
        steps_to_next: Steps to the next decision, where the strategy says so.
        solver: The solver's memory.
        parts: State of what goes along with the balancer, by name.
    """

    strategy: str
    ranks: tuple[SavedRank, ...]
    cursor: Cursor
    data: dict[str, Any] | None
    steps_to_next: int | None
    solver: dict[str, Any]
    parts: dict[str, Any]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The plan that was saved."""
        return tuple(rank.batch_size for rank in self.ranks)

    @property
    def slots(self) -> list[Slot]:
        """The ranks' slots, by rank."""
        return [rank.slot for rank in self.ranks]

    @property
    def memories(self) -> dict[Slot, RankMemory]:
        """What is known of each rank, by slot."""
        return {
            rank.slot: RankMemory(rank.batch_size, rank.model, rank.device) for rank in self.ranks
        }

    def with_plan(self, batch_sizes: Sequence[int]) -> BalancerState:
        """The same with this plan, and nothing said of when to decide on the next one."""
        rows = zip(self.ranks, batch_sizes, strict=True)
        ranks = tuple(replace(rank, batch_size=batch_size) for rank, batch_size in rows)
        return replace(self, ranks=ranks, steps_to_next=None)

    def with_memories(self, models: Sequence[dict[str, Any] | None]) -> BalancerState:
        """The same with the memory of every rank's time model, by rank."""
        ranks = [replace(rank, model=m) for rank, m in zip(self.ranks, models, strict=True)]
        return replace(self, ranks=tuple(ranks))

    def plain(self) -> dict[str, Any]:
        """The state as plain JSON data."""
        return {
            "format": FORMAT,
            "strategy": self.strategy,
            "ranks": [
                {
                    "host": rank.slot[0],
                    "slot": rank.slot[1],
                    "device": rank.device,
                    "batch_size": rank.batch_size,
                    "model": rank.model,
                }
                for rank in self.ranks
            ],
            "epoch": self.cursor.epoch,
            "used": [list(interval) for interval in self.cursor.used],
            "data": self.data,
            "steps_to_next": self.steps_to_next,
            "solver": self.solver,
            "parts": self.parts,
        }

    @classmethod
    def of(cls, plain: Any) -> BalancerState:
        """The state that `plain` gave.

        Raises:
            ValueError: If it is not one of this version, or something in it cannot be.
        """
        if not isinstance(plain, Mapping):
            raise ValueError(f"a {type(plain).__name__} is no state; expected a mapping.")
        if plain.get("format") != FORMAT:
            raise ValueError(f"its format is {plain.get('format')!r}; this version reads {FORMAT}.")
        ranks = tuple(_rank(*entry) for entry in enumerate(_entry(plain, "ranks", list)))
        if not ranks or sum(rank.batch_size for rank in ranks) < 1:
            raise ValueError(f"its {len(ranks)} ranks have no samples.")
        if len({rank.slot for rank in ranks}) != len(ranks):
            raise ValueError("it has two ranks on one slot.")
        used = []
        for interval in _entry(plain, "used", list):
            if not isinstance(interval, list) or len(interval) != 2:
                raise ValueError(f"{interval!r} in 'used' is not a pair of positions.")
            used.append((_whole(interval[0], "used"), _whole(interval[1], "used")))
        steps = _entry(plain, "steps_to_next", (int, type(None)))
        data = _entry(plain, "data", (dict, type(None)))
        return cls(
            strategy=_entry(plain, "strategy", str),
            ranks=ranks,
            cursor=Cursor(_whole(plain.get("epoch"), "epoch"), tuple(used)),
            data=None if data is None else dict(data),
            steps_to_next=None if steps is None else _whole(steps, "steps_to_next", least=1),
            solver=dict(_entry(plain, "solver", dict)),
            parts=dict(_entry(plain, "parts", dict)),
        )


def _rank(index: int, row: Any) -> SavedRank:
    place = f"ranks[{index}]"
    if not isinstance(row, Mapping):
        raise ValueError(f"{row!r} in {place!r} is not a mapping.")
    slot = (_entry(row, "host", str, place), _whole(row.get("slot"), f"{place}.slot"))
    model = _entry(row, "model", (dict, type(None)), place)
    # States of earlier versions have no kinds of device.
    device = _entry({"device": "", **row}, "device", str, place)
    samples = _whole(row.get("batch_size"), f"{place}.batch_size")
    return SavedRank(slot, samples, model, device)


def _entry(
    row: Mapping[str, Any], name: str, kind: type | tuple[type, ...], place: str = ""
) -> Any:
    full_name = f"{place}.{name}" if place else name
    if name not in row:
        raise ValueError(f"it has no entry {full_name!r}.")
    if not isinstance(row[name], kind):
        raise ValueError(f"its {full_name!r} is a {type(row[name]).__name__}: {row[name]!r:.40}.")
    return row[name]


def _whole(value: Any, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} in {name!r} is not a whole number of at least {least}.")
    return value
