"""Training that goes on while ranks come, go and die: `run`, and states to commit and restore.

Use it in place of `horovod.tensorflow.elastic`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import horovod.tensorflow as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow import broadcast_object, broadcast_object_fn, rank

from hvd_dbs.balancer import Balancer
from hvd_dbs.comm.collective import is_elastic
from hvd_dbs.elastic import rendezvous
from hvd_dbs.elastic.rendezvous import init
from hvd_dbs.job.memory_bounds import StepTooLargeError
from hvd_dbs.tensorflow.elastic_state import ElasticState, RankLeaves, least_ranks
from hvd_dbs.tensorflow.variables import broadcast_variables, tensorflow_variable
from hvd_dbs.watchdog import crash_report
from hvd_dbs.watchdog.exit_barrier import shutdown

__all__ = [
    "HorovodInternalError",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "init",
    "rank",
    "run",
    "shutdown",
]

_LOGGER = logging.getLogger(__name__)


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training function so that it goes on when ranks come, go or die.

    The function is called with the state that all ranks agree on. Where a rank dies it is called
    again from the last commit; where ranks are added or removed, from the state at that commit.
    Where a step of `fit` with a balancer runs out of memory on a rank, that rank gets fewer samples
    from the last commit on.
    With `drop_slow_ranks=True` ranks without which the job is faster end at a commit, with exit
    code 75.
    What it does before its first collective operation a rank that joins later does alone, so
    nothing collective may stand before its call, and it must be able to go on from the state:
    `model.fit(..., initial_epoch=state.epoch)`.

    In a job that is not elastic (mpirun, horovodrun without a discovery script) a rank that dies
    ends the job.

    Args:
        function: Its first argument is a state of this module or of `hvd_dbs.keras.elastic`.

    Returns:
        The function, to be called on all ranks. Called with another state, such as one of
        Horovod's own, it raises TypeError.

    Example:
        >>> @hvd.elastic.run  # doctest: +SKIP
        ... def train(state):
        ...     model.fit(dataset, epochs=10, initial_epoch=state.epoch, callbacks=[
        ...         hvd.callbacks.DynamicBatchSizeCallback(balancer),
        ...         hvd.elastic.UpdateEpochStateCallback(state),
        ...         hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
        ...     ])
        >>> train(hvd.elastic.KerasState(model, epoch=0))  # doctest: +SKIP
    """

    @functools.wraps(function)
    def wrapper(state: ElasticState, *arguments: Any, **options: Any) -> Any:
        _require_state(state)
        if state.departures is not None and not rendezvous.has_store() and hvd.rank() == 0:
            _LOGGER.warning(
                "drop_slow_ranks=True has no effect: no rank can leave a job that is not elastic. "
                "Start it by horovodrun with --host-discovery-script, or without its slow ranks."
            )
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            return _run_until_done(state, lambda: function(state, *arguments, **options))
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def _require_state(state: object) -> None:
    if not isinstance(state, ElasticState):
        raise TypeError(
            f"The state is a {type(state).__module__}.{type(state).__name__}. Use one of "
            f"hvd_dbs: hvd.elastic.KerasState of hvd_dbs.keras, or TensorFlowState, "
            f"TensorFlowKerasState or ObjectState of hvd_dbs.tensorflow.elastic."
        )


def _run_until_done(state: ElasticState, train: Callable[[], Any]) -> Any:
    """Trains from the state that all ranks agree on, again with each change of ranks."""
    while True:
        try:
            state.sync()
            _report_ranks(state)
            result = train()
            state.finish()
            return result
        except RankLeaves:
            state.pause()
            _leave()
        except HostsUpdatedInterrupt:
            _LOGGER.info("hosts were added or removed; the ranks meet anew.")
            state.save()
            state.pause()
        except Exception as error:
            is_too_large = isinstance(error, StepTooLargeError)
            may_go_on = is_too_large or crash_report.is_lost_peer(error)
            if not (may_go_on and rendezvous.has_store()):
                raise
            _LOGGER.warning(
                "%s; going back to the last commit. (%s)",
                "this rank gets fewer samples" if is_too_large else "another rank is gone",
                str(error) if is_too_large else crash_report.last_line(error),
            )
            state.pause()
            state.restore()
        rendezvous.rejoin()
        state.on_reset()


def _leave() -> NoReturn:
    """Ends this process, so that the launcher gives the others places without its host."""
    _LOGGER.warning("this rank leaves the job, which is faster without it.")
    crash_report.end_in_time()
    hvd.shutdown()
    # With 0 the launcher would take the training to be over, on all ranks.
    raise SystemExit(os.EX_TEMPFAIL)


def _report_ranks(state: ElasticState) -> None:
    """Logs on rank 0 of an elastic job which ranks it has now, and their plan."""
    if not (is_elastic() and hvd.rank() == 0):
        return
    size, balancer = hvd.size(), state.balancer
    ranks = f"{size} rank{'s' if size > 1 else ''}"
    if balancer is None:
        _LOGGER.info("%s now.", ranks)
    else:
        plan = list(balancer.plan.batch_sizes)
        _LOGGER.info("%s now: global batch %d, local batch sizes %s.", ranks, sum(plan), plan)


class ObjectState(ElasticState):
    """State of plain values alone.

    Args:
        bcast_object: For Horovod's signature; all ranks agree on the values whatever it is.
        get_rank: For Horovod's signature.
        **attributes: The values, exposed as attributes of the state.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **attributes: Any) -> None:
        super().__init__([], None, attributes, "constant")


class TensorFlowState(ElasticState):
    """State of a training loop of your own.

    Args:
        variables: Variables of model and optimizer, the optimizer's slots included; of TensorFlow
            or Keras 3.
        session: None; for Horovod's signature.
        balancer: The balancer that the loop goes by, or None.
        global_batch: "constant", or "per_rank": it follows the number of ranks.
        drop_slow_ranks: Whether ranks without which the job is faster leave it at a commit
            (`docs/elastic.md`).
        min_ranks: With it, how many ranks stay: the `--min-np` of horovodrun.
        **attributes: More values, exposed as attributes of the state.
    """

    def __init__(
        self,
        variables: Sequence[Any] | None = None,
        session: None = None,
        *,
        balancer: Balancer | None = None,
        global_batch: str = "constant",
        drop_slow_ranks: bool = False,
        min_ranks: int | None = None,
        **attributes: Any,
    ) -> None:
        if session is not None:
            raise TypeError("TensorFlowState takes no session: TensorFlow 1 is not supported.")
        if variables is None:
            raise TypeError(
                "TensorFlowState needs the variables: TensorFlow 2 keeps no list of them. Use "
                "TensorFlowState([*model.variables, *optimizer.variables], ...), or ObjectState "
                "for values alone."
            )
        plain = [tensorflow_variable(variable) for variable in variables]
        least = least_ranks(drop_slow_ranks, min_ranks)
        super().__init__(plain, balancer, attributes, global_batch, least)


class TensorFlowKerasState(ElasticState):
    """State of a Keras 3 model and its optimizer, slots included.

    Args:
        model: A model that is built.
        optimizer: Its optimizer, if it is not compiled into the model.
        backend: None; for Horovod's signature.
        balancer: The balancer that training goes by; None: the optimizer's.
        global_batch: "constant", or "per_rank": the balancer's global batch follows the number of
            ranks, from the one that it is given and the ranks that the job begins with.
        drop_slow_ranks: Whether ranks without which the job is faster leave it at a commit
            (`docs/elastic.md`).
        min_ranks: With it, how many ranks stay: the `--min-np` of horovodrun.
        **attributes: More values, exposed as attributes of the state, such as `epoch=0, batch=0`.

    Raises:
        ValueError: If the model is not built or has no optimizer, or `drop_slow_ranks` was given
            without a balancer or `min_ranks`.
        TypeError: If a balancer is given in the optimizer's place.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        backend: Any = None,
        *,
        balancer: Balancer | None = None,
        global_batch: str = "constant",
        drop_slow_ranks: bool = False,
        min_ranks: int | None = None,
        **attributes: Any,
    ) -> None:
        if isinstance(optimizer, Balancer):
            raise TypeError(
                "KerasState was given a balancer as its optimizer. Name it: "
                "KerasState(model, balancer=...); that of the model's optimizer need not be given."
            )
        optimizer = optimizer or getattr(model, "optimizer", None)
        if not model.built or optimizer is None:
            raise ValueError(
                f"model {model.name!r} has no "
                f"{'optimizer' if model.built else 'weights'} yet, so there is no state to commit. "
                f"Build the model (an Input layer, or model.build(shape)) and compile it first."
            )
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.model, self.optimizer = model, optimizer
        optimizers = self.all_optimizers()
        for one in optimizers:
            if not one.built:
                raise ValueError(
                    f"{one.name!r}, an optimizer of model {model.name!r}, has no variables yet, so "
                    f"there is no state of it to commit. Call its build with the weights that it "
                    f"updates first."
                )
        of_optimizers = [variable for one in optimizers for variable in one.variables]
        variables = [variable.value for variable in [*model.weights, *of_optimizers]]
        balancer = balancer or getattr(optimizer, "balancer", None)
        least = least_ranks(drop_slow_ranks, min_ranks)
        super().__init__(variables, balancer, attributes, global_batch, least)

    def all_optimizers(self) -> list[Any]:
        """Those whose variables are committed."""
        return [self.optimizer]

    def trace_anew(self) -> None:
        """The next `fit` traces its step, as that of the rank that has joined is."""
        self.model.train_function = None
