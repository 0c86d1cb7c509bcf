"""What the ranks of an elastic job agree on, commit and go back to."""

from __future__ import annotations

import copy
import logging
import os
import queue
from collections.abc import Sequence
from typing import Any, NoReturn

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.elastic import State
from horovod.common.exceptions import HostsUpdatedInterrupt
from numpy.typing import NDArray

from hvd_dbs.balancer import Balancer, session_of
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import connect
from hvd_dbs.job.arguments import whole_number
from hvd_dbs.job.departures import Departures
from hvd_dbs.job.dispensable_ranks import DispensableRanks
from hvd_dbs.ops import native
from hvd_dbs.tensorflow.variables import broadcast_arrays

_LOGGER = logging.getLogger(__name__)

_HOSTS_UPDATED, _RANKS_LEAVE = 1, 2
"""What a rank knows of changes, at a commit; one bit each."""


class RankLeaves(HostsUpdatedInterrupt):
    """Raised on a rank that leaves, since the job is faster without it."""

    def __init__(self) -> None:
        super().__init__(skip_sync=False)


class ElasticState(State):
    """Variables, a balancer's position and plain values, which all ranks agree on.

    Args:
        variables: The variables of model and optimizer, the same on all ranks.
        balancer: The balancer that training goes by, or None.
        attributes: More values by name, exposed as attributes of the state.
        global_batch: Whether the balancer's global batch stays ("constant") or follows the number
            of ranks ("per_rank"), from the one that it is given and the ranks that the job begins
            with.
        min_ranks: Ranks without which the job is faster leave it at a commit, if so many are left;
            None: all stay.

    Attributes:
        departures: Which ranks are to leave, by what rank 0 knows; None: all stay.
        num_commits: How often the job has committed; 0 in a job that begins.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        balancer: Balancer | None,
        attributes: dict[str, Any],
        global_batch: str,
        min_ranks: int | None = None,
    ) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        if global_batch not in ("constant", "per_rank"):
            raise ValueError(
                f"global_batch={global_batch!r} is unknown. Use 'constant' (the global batch "
                f"stays) or 'per_rank' (it follows the number of ranks)."
            )
        self.balancer = balancer
        self.global_batch = global_batch
        # What the global batch follows from: its size, and the ranks that it was meant for.
        self._base: tuple[int, int] | None = None
        self._tracked = list(variables)
        self._names = sorted(attributes)
        for name, value in attributes.items():
            setattr(self, name, value)
        self._traced_with_native: bool | None = None
        self._saved_values: list[NDArray[Any]] = []
        self._saved_objects: dict[str, Any] = {}
        self.num_commits = -1
        self._min_ranks = min_ranks
        self.departures = None if min_ranks is None else _departures(balancer, min_ranks)
        self.save()

    def commit(self) -> None:
        """Saves the state in memory, and lets ranks join or leave. Collective.

        Raises:
            HostsUpdatedInterrupt: On all ranks, for `run`, if hosts were added or removed, or
                ranks leave.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Lets ranks join or leave. Collective.

        Raises:
            HostsUpdatedInterrupt: On all ranks, for `run`, if hosts were added or removed, or
                ranks leave.
        """
        known = 0
        while True:
            try:
                self._host_messages.get_nowait()
                known = _HOSTS_UPDATED
            except queue.Empty:
                break
        due = None if self.departures is None else self.departures.due  # It may change meanwhile.
        if due is not None:
            known |= _RANKS_LEAVE
        all_known = _gathered(known)
        # The launcher tells one rank only, which need not be rank 0 any more.
        if np.any(all_known & _HOSTS_UPDATED):
            raise HostsUpdatedInterrupt(skip_sync=False)
        if all_known[0] & _RANKS_LEAVE:
            self._let_leave(due)

    def _let_leave(self, due: DispensableRanks | None) -> NoReturn:
        """Rank 0 says which ranks leave. Collective."""
        leaving = np.zeros(hvd.size(), np.uint8)
        if due is not None and self.departures is not None:
            leaving[list(due.ranks)] = 1
            who = due.named(self.departures.hosts)
            _LOGGER.warning("the job goes on without %s: %s", who, due.reason)
        leaving = hvd.broadcast(tf.constant(leaving), 0, name="hvd_dbs.elastic.leaving").numpy()
        raise RankLeaves if leaving[hvd.rank()] else HostsUpdatedInterrupt(skip_sync=False)

    def on_reset(self) -> None:
        """Calls the callbacks registered for a change of ranks; what hosts do is not forgotten."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def pause(self) -> None:
        """Ends what still runs of a training that was interrupted."""
        if self.balancer is not None:
            self.balancer.pause()

    def save(self) -> None:
        """Saves variables, values and position in memory."""
        self._saved_values = [np.array(variable.numpy()) for variable in self._tracked]
        attributes = {name: copy.deepcopy(getattr(self, name)) for name in self._names}
        balancing = None if self.balancer is None else self.balancer.state_dict()
        self._saved_objects = {
            "attributes": attributes,
            "balancer": balancing,
            "base": self._base,
        }
        self.num_commits += 1

    def restore(self) -> None:
        """Goes back to what was saved last."""
        for variable, value in zip(self._tracked, self._saved_values, strict=True):
            variable.assign(value)
        for name, value in self._saved_objects["attributes"].items():
            setattr(self, name, copy.deepcopy(value))
        if self.balancer is not None:
            self._follow(self._saved_objects["balancer"])

    def _follow(self, balancing: dict[str, Any]) -> None:
        """Sets `epoch` and `batch` as the balancer has them, whoever was to keep them."""
        num_used = sum(end - start for start, end in balancing["used"])
        if not balancing["epoch"] and not num_used:
            return  # Where a first training begins is up to the user.
        if "epoch" in self._names:
            self.epoch = balancing["epoch"]
        if "batch" in self._names:
            self.batch = num_used // sum(rank["batch_size"] for rank in balancing["ranks"])

    def sync(self) -> None:
        """Gives all ranks the latest commit of any, and the balancer's plan for them. Collective.

        Ranks may have missed the last commit of the others when one died in the middle of it.
        """
        collective = connect()
        given = {"values": str(self._names), "min_ranks": str(self._min_ranks)}
        agreement.require_equal(collective, given)
        if self.departures is not None:
            host = os.environ.get("HOROVOD_HOSTNAME", "")
            self.departures.change_ranks(agreement.allgather_text(collective, host))
        commits = collective.allgather(np.array([self.num_commits], dtype=np.int64))[:, 0]
        root = int(np.argmax(commits))
        values = broadcast_arrays(self._saved_values, root)
        self._saved_objects = hvd.broadcast_object(
            self._saved_objects, root_rank=root, name="hvd_dbs.elastic.objects"
        )
        self._saved_values = values  # Not before: another rank may die in between.
        self.num_commits = int(commits[root])
        if self.balancer is not None:
            self._rejoin(self.balancer)
        self.restore()
        # Here, where all ranks are: those that were here before do not trace their steps again.
        native.forget_agreement()
        has_native = native.agreed() is not None
        if self._traced_with_native not in (None, has_native):
            self.trace_anew()
        self._traced_with_native = has_native

    def trace_anew(self) -> None:
        """Steps that are traced already do not fit those of a rank that has joined."""
        raise RuntimeError(
            "a rank has joined that can use the native library where the others cannot, or the "
            "other way round. Set HVD_DBS_NATIVE=0, or install hvd_dbs alike on all hosts."
        )

    def _rejoin(self, balancer: Balancer) -> None:
        state = self._saved_objects["balancer"]
        global_batch_size = sum(rank["batch_size"] for rank in state["ranks"])
        size, size_before = hvd.size(), len(state["ranks"])
        base = self._saved_objects["base"]
        if base is None:
            size_before = size  # The job begins, with as many ranks as there are.
        if base is None or global_batch_size != _scaled(base, size_before):
            base = (global_batch_size, size_before)  # The user has changed it.
        if self.global_batch == "per_rank":
            global_batch_size = _scaled(base, size)
        self._base = self._saved_objects["base"] = base
        balancer.rejoin(state, global_batch_size)

    def finish(self) -> None:
        """Returns when all ranks are through. Collective: who is not makes all go back."""
        _gathered(0)


def least_ranks(drop_slow_ranks: bool, min_ranks: int | None) -> int | None:
    """How many ranks stay whatever their pace; None: all do.

    Raises:
        ValueError: If one was given without the other, or there can be no such number.
        TypeError: If the number is no whole number.
    """
    if drop_slow_ranks != (min_ranks is not None):
        raise ValueError(
            f"drop_slow_ranks={drop_slow_ranks} was given with min_ranks={min_ranks}. Give both, "
            f"drop_slow_ranks=True and as min_ranks the --min-np of horovodrun, which ranks do not "
            f"see, or neither."
        )
    if min_ranks is not None and whole_number("min_ranks", min_ranks) < 1:
        raise ValueError(f"min_ranks={min_ranks} must be at least 1: somebody has to train.")
    return min_ranks


def _departures(balancer: Balancer | None, min_ranks: int) -> Departures:
    """Follows the job of a balancer."""
    if balancer is None:
        raise ValueError(
            "drop_slow_ranks=True was given without a balancer, and nobody measures how slow a "
            "rank is. Give the balancer that training goes by: balancer=..."
        )
    departures = Departures(session_of(balancer).controller, min_ranks)
    balancer.observe(departures)
    return departures


def _gathered(flags: int) -> NDArray[np.uint8]:
    """Flags of each rank, in the training's own thread whatever balancing has under way."""
    flags = tf.constant([flags], tf.uint8)
    return np.asarray(hvd.allgather(flags, name="hvd_dbs.elastic.flags"))


def _scaled(base: tuple[int, int], size: int) -> int:
    """The global batch of so many ranks, given another one with its ranks."""
    return max(1, round(base[0] * size / base[1]))
