"""A job's balancing goes on in another run of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from hvd_dbs.balancing import Controller, Plan
from hvd_dbs.balancing.inheritance import inherit, slots_by_rank
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.job.balancer_state import BalancerState, SavedRank
from hvd_dbs.job.position import TrainingPosition
from hvd_dbs.sampling import Cursor, merge_intervals


class StatefulPart(Protocol):
    """What is saved along with a balancer; the same on all ranks."""

    def state_dict(self) -> Any:
        """Plain JSON data."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Continues from a `state_dict`, or from nothing: None.

        Raises:
            ValueError: If it is no such state; nothing is changed then.
        """
        ...


class Resumption:
    """Puts together what a balancer keeps, and takes it apart again.

    Args:
        collective: The job.
        controller: This rank's controller.
        position: Where training stands.
        places: Where every rank runs, by rank.
        parts: What is saved along, by name.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        position: TrainingPosition,
        places: Sequence[Place],
        parts: Mapping[str, StatefulPart],
    ) -> None:
        self._collective = collective
        self._controller = controller
        self._position = position
        self._use(places)
        self._parts = dict(parts)
        self._data: dict[str, Any] | None = None
        self._memory: SavedRank | None = None
        self._has_joined = False

    def read_from(self, index_stage: IndexStage) -> None:
        """Sets the data set that is trained on.

        Raises:
            ValueError: If training is to go on with other samples.
        """
        if self._position.start is not None:
            _check_data(self._data, index_stage.identity)
            self._position.start = _place_in(self._position.start, self._data, index_stage.identity)
        self._position.read_from(index_stage)
        self._data = index_stage.identity

    def state(self) -> BalancerState:
        """The state, with the memory of this rank's time model alone."""
        rank, plan = self._collective.rank, self._controller.plan
        controller = self._controller.state_dict()
        ranks = [
            SavedRank(slot, batch_size, device=device)
            for slot, device, batch_size in zip(
                self._slots, self._devices, plan.batch_sizes, strict=True
            )
        ]
        ranks[rank] = replace(ranks[rank], model=controller["model"])
        return BalancerState(
            strategy=controller["strategy"],
            ranks=tuple(ranks),
            cursor=self._position.cursor,
            data=self._data,
            steps_to_next=controller["steps_to_next"],
            solver=controller["solver"],
            parts={name: part.state_dict() for name, part in self._parts.items()},
        )

    def gather(self) -> BalancerState:
        """The state with the memory of all ranks, on all ranks. Collective."""
        rows = agreement.allgather_json(self._collective, self.state().plain())
        models = [row["ranks"][rank]["model"] for rank, row in enumerate(rows)]
        # Rank 0 decides: it has the solver's memory, and a plan that others do not know yet.
        return BalancerState.of(rows[0]).with_memories(models)

    def load(self, plain: Any) -> None:
        """Goes on from a state, on all ranks or on none. Collective.

        Raises:
            ValueError: On all ranks, if it does not fit on one of them, or ranks have different
                ones.
        """
        error: Exception | None = None
        before = self._controller.state_dict()
        parts_before = {name: part.state_dict() for name, part in self._parts.items()}
        agreed: dict[str, str] = {}
        try:
            state = BalancerState.of(plain)
            if state.cursor != Cursor():
                _check_data(state.data, self._data)
            cursor = _place_in(state.cursor, state.data, self._data)
            self._position.check_start(cursor)
            self._controller.load_state_dict(self._controller_state(state))
            self._load_parts(state.parts)
            agreed = {
                "the saved plan": str(state.batch_sizes),
                "the place in the epoch": str(cursor),
                "the plan": str(self._controller.batch_sizes),
            }
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as caught:
            error = ValueError(
                f"this is not a state of this balancer, as state_dict() or gather_state_dict() "
                f"returns it: {caught}"
            )
        try:
            agreement.raise_together(self._collective, error)
            agreement.require_equal(self._collective, agreed)
        except ValueError:
            self._controller.load_state_dict(before)
            self._load_parts(parts_before)
            raise
        self._position.start_at(cursor)
        self._data = self._data or state.data

    def remember(self) -> None:
        """Keeps what is known of this rank's pace, before an elastic job gets other ranks."""
        if self._has_joined:
            self._memory = self.state().ranks[self._collective.rank]
            self._has_joined = False  # Until all are through: another rank may be lost meanwhile.

    def rejoin(self, plain: Any, places: Sequence[Place]) -> None:
        """Goes on from a state with the ranks that an elastic job has now. Collective.

        Args:
            plain: The state, the same on all ranks; of its time models none is used.
            places: Where every rank runs now, by rank.

        Raises:
            ValueError: On all ranks, if the state does not fit.
        """
        row: dict[str, Any] = {"batch_size": 0, "model": None}
        if self._memory is not None:
            row = {"batch_size": self._memory.batch_size, "model": self._memory.model}
        rows = agreement.allgather_json(self._collective, row)
        # By the hosts' own names: those of launchers may be made up for each run.
        self._use(places)
        known = tuple(
            SavedRank(slot, row["batch_size"], row["model"], device)
            for slot, device, row in zip(self._slots, self._devices, rows, strict=True)
            if row["batch_size"]
        )
        state = BalancerState.of(plain)
        self.load(replace(state, ranks=known or state.ranks).plain())
        self._has_joined = True

    def _use(self, places: Sequence[Place]) -> None:
        """The ranks run there from now on."""
        self._slots = slots_by_rank([place.host for place in places])
        self._devices = [place.device for place in places]

    def _load_parts(self, states: Mapping[str, Any]) -> None:
        unknown = sorted(set(states) - set(self._parts))
        if unknown:
            raise ValueError(f"its parts {', '.join(unknown)} are not known to this version.")
        for name, part in self._parts.items():
            part.load_state_dict(states.get(name))

    def _controller_state(self, state: BalancerState) -> dict[str, Any]:
        """What this rank's controller goes on from."""
        own = self._controller.state_dict()
        memories = inherit(state.memories, self._slots, self._devices)
        model = memories[self._collective.rank].model
        loaded = {
            "strategy": state.strategy,
            "batch_sizes": list(state.batch_sizes),
            "steps_to_next": state.steps_to_next,
            "model": own["model"] if model is None else model,
            "solver": state.solver,
        }
        total, bounds = self._controller.global_batch_size, self._controller.bounds
        is_same = state.slots == self._slots and sum(state.batch_sizes) == total
        is_same = is_same and all(map(_may_be_same, state.ranks, self._devices))
        strategy = self._controller.strategy
        learns = not strategy.keeps_plan
        if learns and is_same and bounds.allow(state.batch_sizes):
            return loaded
        # The solver's memory is of plans that are no more.
        loaded |= {name: own[name] for name in ("batch_sizes", "steps_to_next", "solver")}
        if learns:
            shares = [memory.share for memory in memories]
            plan = Plan.proportional(total, shares, bounds)
            loaded["batch_sizes"] = list(plan.batch_sizes)
        return loaded


def _may_be_same(rank: SavedRank, device: str) -> bool:
    """Whether a rank's slot has the kind of device that it had, as far as both are known."""
    return not (rank.device and device) or rank.device == device


def _check_data(saved: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> None:
    """Raises ValueError if training is to go on with other samples than it began with."""
    if saved is None or given is None:
        return
    differing = [
        f"{name}={given.get(name)!r} instead of {saved.get(name)!r}"
        for name in {**saved, **given}
        if given.get(name) != saved.get(name)
        and not (name == "num_samples" and _are_endless(saved, given))
    ]
    if differing:
        raise ValueError(
            f"the data set has {', '.join(differing)}. Training can only go on with the samples "
            f"and the order that it began with: make the data set with the same arguments."
        )


def _are_endless(saved: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether both are as many samples as some steps have, by a global batch size each."""
    return "is_endless" in saved and "is_endless" in given


def _place_in(
    cursor: Cursor, saved: Mapping[str, Any] | None, given: Mapping[str, Any] | None
) -> Cursor:
    """The place in a data set that a place in what was saved of it is: after as many steps."""
    if saved is None or given is None or not _are_endless(saved, given):
        return cursor
    before, now = saved["num_samples"], given["num_samples"]
    used = [(start * now // before, end * now // before) for start, end in cursor.used]
    return Cursor(cursor.epoch, merge_intervals(used))
