"""What users hold of a balanced job; its parts are in a session that they do not see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from hvd_dbs.balancing import Plan, Strategy
from hvd_dbs.comm.collective import Collective
from hvd_dbs.job.arguments import (
    BalancerArguments,
    BatchSizeBound,
    BatchSizeLimits,
    MicroBatches,
    MicroBatchOptions,
)
from hvd_dbs.job.epochs import Epoch
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.observers import Observer, RankEvent
from hvd_dbs.job.session import Session
from hvd_dbs.learning_rate.dynamic import DynamicLearningRate
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.sampling import Cursor

if TYPE_CHECKING:
    from typing_extensions import Unpack  # In `typing` from Python 3.11 on.


class Balancer:
    """Sizes local batches so that all ranks finish together.

    One balancer serves one training data set and one `fit` at a time, with any number of
    optimizers. All ranks make it with the same arguments, after `hvd.init()`.

    Args:
        global_batch_size: Samples that all ranks together process in a step.
        strategy: A preset's name ("adaptive", "dbs", "even", ...) or a `Strategy`, such as
            `strategies.static([2, 1, 1])`.
        every: When to decide: "epoch", a number of steps, or None for the strategy's own cadence.
        min_batch_size: Fewest samples of a rank, at least 1: one number, one per rank, or a dict
            by host or kind of device, such as `{"NVIDIA A100*": 256, "node7": 64}`. A host's name
            counts before shell patterns of kinds and hosts, and "*" is all others.
        max_batch_size: Most samples of a rank, as its memory allows, likewise; "auto": what `fit`
            finds out before it trains (`docs/devices.md`); None: no limit.
        multiple_of: Local batch sizes are multiples of this.
        journal: File to which rank 0 writes what all ranks report and what it decides, for
            `hvd-dbs report`; appended if the file exists. None: nowhere.
        profile: File to which rank 0 writes how fast each kind of device is, and from which the
            next training takes its first plan. None: training begins even.
        **micro_batches: `micro_batch_size`: how many samples a rank computes at a time, given as
            `max_batch_size` is; of different sizes each divides the next larger one. Local batch
            sizes are multiples of it, unless `allow_partial=True` lets the last micro-batch of a
            step have fewer samples (`docs/micro_batches.md`).

    Raises:
        TypeError: If an argument is unknown, or no whole number where one is expected.
        ValueError: On all ranks, if an argument is impossible or differs between ranks.
        RuntimeError: If Horovod is not initialized; on all ranks, if they have different versions
            of hvd_dbs.

    Example:
        >>> balancer = hvd.Balancer(global_batch_size=512, strategy="adaptive")  # doctest: +SKIP
        >>> dataset = balancer.dataset((images, labels), shuffle_seed=7)  # doctest: +SKIP
    """

    def __init__(
        self,
        global_batch_size: int,
        strategy: str | Strategy = "adaptive",
        every: str | int | None = None,
        min_batch_size: BatchSizeBound = 1,
        max_batch_size: BatchSizeBound | Literal["auto"] | None = None,
        multiple_of: int = 1,
        journal: str | os.PathLike[str] | None = None,
        profile: str | os.PathLike[str] | None = None,
        **micro_batches: Unpack[MicroBatchOptions],
    ) -> None:
        cut = MicroBatches.of(micro_batches)
        limits = BatchSizeLimits(min_batch_size, max_batch_size, multiple_of, cut)
        given = BalancerArguments(global_batch_size, strategy, every, limits, journal, profile)
        self._session = Session(given)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._session.collective.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._session.collective.size

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks together process in a full step."""
        return self._session.controller.global_batch_size

    @property
    def strategy(self) -> Strategy:
        """Model, solver and cadence in use."""
        return self._session.controller.strategy

    @property
    def plan(self) -> Plan:
        """The plan last decided on; `plan.batch_sizes` is a tuple by rank."""
        return self._session.controller.plan

    def dataset(
        self,
        source: Any,
        shuffle_seed: int | None = None,
        *,
        training: bool = True,
        layout: str = "windows",
        cost: Any = None,
    ) -> tf.data.Dataset:
        """This rank's part of the data, re-cut whenever the plan changes.

        All ranks give the whole data set. In each epoch every sample is used exactly once, and
        each global batch holds the same samples whatever the plan is. A rank without a sample in
        a last, partial global batch gets padding samples, which count for nothing.

        With `training=False` it is a data set for `validation_data` and `model.evaluate`: each
        rank reads one consecutive part in proportion to the plan in force, together all samples
        once, and `MetricAverageCallback` adds up what the ranks' metrics have counted. Training
        is not touched by it.

        Args:
            source: Arrays in any nesting of tuples, lists and dicts, with the same first
                dimension N; or a source of `hvd.data` with N samples.
            shuffle_seed: Seed of the order, which also depends on the epoch; None: no shuffling.
            training: Whether `fit` trains on it; one such data set at a time.
            layout: "windows", or "contiguous": each rank reads one consecutive piece of the epoch's
                order, in proportion to the plan, as DBS describes it. Plans then change between
                epochs only, and which samples meet in a global batch depends on them.
            cost: What each sample costs to train on, such as its length or its pixels, in any unit:
                an array of shape `[N]`, not negative, the same on all ranks. Each global batch is
                then cut by cost: batch sizes of the plan, and their bounds, are in samples of mean
                cost. What a rank's gradient counts for stays its number of samples.

        Returns:
            A data set of local batches with a dynamic batch dimension and
            `ceil(N / global_batch_size)` elements on every rank (fewer for an evaluation of less
            than two samples per rank and step; no end with an endless stream).

        Raises:
            ValueError: On all ranks, if the source or the costs cannot be read on one of them, or
                N, the samples, the seed or the costs differ between ranks, or differ from those of
                the state that training goes on from.
        """
        return self._session.datasets.make(
            source, shuffle_seed, training=training, layout=layout, cost=cost
        )

    def epochs(
        self, dataset: tf.data.Dataset, num_epochs: int, initial_epoch: int | None = None
    ) -> Iterator[Epoch]:
        """Epochs of a training loop of your own; iterating over one gives the batch of each step.

        Plans are decided on and take effect as in `fit`. All ranks run the same steps: a `break`
        that ends an epoch happens on all of them. A training that is left by `break` or by an
        exception is ended by the next one, or by `balancer.loop.end_training()`.

        Args:
            dataset: The one that this balancer made last, possibly mapped.
            num_epochs: Number of the last epoch, plus 1.
            initial_epoch: Number of the first one; None: 0, or the epoch of the state that was
                loaded.

        Raises:
            TypeError: If a number is no whole number.
            ValueError: On all ranks, if the numbers differ between ranks, or are negative; while
                iterating, if training is to continue in another epoch, or does not read `dataset`.

        Example:
            >>> for epoch in balancer.epochs(dataset, 10):  # doctest: +SKIP
            ...     for images, labels in epoch:
            ...         train_step(images, labels)
        """
        return self._session.epochs(dataset, num_epochs, initial_epoch)

    def observe(self, *observers: Observer | Callable[[RankEvent], None]) -> None:
        """Lets observers follow the job on rank 0, from the next training on.

        Args:
            *observers: Each an observer of `hvd.observers`, or a function that receives a
                `RankEvent` when a rank falls far below its own best speed, and when it has
                recovered.

        Raises:
            TypeError: If one is neither.

        Example:
            >>> balancer.observe(lambda event: send_message(event.text))  # doctest: +SKIP
        """
        self._session.observe(observers)

    def resize(self, global_batch_size: int) -> None:
        """Changes the global batch size; while an epoch is open, from the next one on. Collective.

        Ranks keep their shares, and the learning rate follows with `DynamicLearningRateCallback`.
        A larger global batch also works during a `fit`. For a smaller one, which needs more steps,
        let `fit` end, make the data set anew and call `fit` again, as Keras counts steps at first.

        Raises:
            ValueError: On all ranks, if the argument is impossible within the bounds, differs
                between ranks, or means more steps during a `fit`. Nothing is changed then.
        """
        self._session.resize(global_batch_size)

    @property
    def cursor(self) -> Cursor:
        """Where training stands in the samples: where it is to go on if it ends here."""
        return self._session.position.cursor

    def state_dict(self) -> dict[str, Any]:
        """Plan, place in the epoch and memory as plain JSON data; of time models this rank's.

        Made from the same state, the data set and the next `fit` continue after the samples that
        are used, on any number of ranks and with any global batch size.
        """
        return self._session.state().plain()

    def gather_state_dict(self) -> dict[str, Any]:
        """A `state_dict` with the memory of all ranks' time models, on all ranks. Collective."""
        return self._session.resumption.gather().plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`, of the same job or of one on other ranks. Collective.

        Every rank gives its own `state_dict`, or all give the same one. A rank has its slot's
        memory again, by host and number on it; one on a new slot begins as `inherit` says. The
        next `fit` goes on where training stood. Nothing is changed unless the state fits on all
        ranks.

        Raises:
            ValueError: On all ranks, if it is not a state of such a balancer and data set on each
                of them, or ranks were given different ones.
        """
        self._session.load(state)

    def rejoin(self, state: Mapping[str, Any], global_batch_size: int) -> None:
        """Goes on from a `state_dict` with the ranks that an elastic job has now. Collective.

        The ranks that were there before plan at once by what they know of their pace; others begin
        as `inherit` says.

        Args:
            state: The same on all ranks; of its time models none is used.
            global_batch_size: Samples of all ranks in a step from now on.

        Raises:
            ValueError: On all ranks, if the job cannot go on with these ranks.
        """
        self._session.rejoin(state, global_batch_size)

    def pause(self) -> None:
        """Ends a training that was interrupted; collective, unless the job is elastic.

        In an elastic job it cancels exchanges that are under way; until `rejoin` none is possible.
        """
        self._session.pause()

    @property
    def loop(self) -> TrainingLoop:
        """What a training loop of your own calls: `docs/own_loops.md`."""
        return self._session.loop

    @property
    def dynamic_learning_rate(self) -> DynamicLearningRate:
        """The factor on the learning rate that follows the global batch size."""
        return self._session.learning_rate

    @property
    def collective(self) -> Collective:
        """The ranks of the job, to exchange small arrays."""
        return self._session.collective

    @property
    def clock(self) -> StepClock:
        """This rank's clock: what it was busy with in each step."""
        return self._session.clock


def session_of(balancer: Balancer) -> Session:
    """What a balancer hides from its users, for the callbacks and optimizers of this package."""
    return balancer._session


def require_balancer(given: object, taker: str) -> Balancer:
    """The balancer that `taker` was given; TypeError if it is something else."""
    if not isinstance(given, Balancer):
        raise TypeError(
            f"{taker} was given balancer={given!r}; expected the balancer that makes the data set, "
            f"such as balancer = hvd.Balancer(global_batch_size=512)."
        )
    return given
