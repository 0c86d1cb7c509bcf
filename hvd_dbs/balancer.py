"""The user's handle on a balanced job: one controller, one collective, one data set."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

import hvd_dbs
from hvd_dbs.balancer_arguments import (
    BatchSizeBound,
    BatchSizeLimits,
    identity,
    require_seed,
    whole_number,
)
from hvd_dbs.balancing import Controller, Plan, Strategy, strategies
from hvd_dbs.comm import agreement
from hvd_dbs.comm import collective as job
from hvd_dbs.comm.introduction import Introduction, introduce
from hvd_dbs.data.evaluation_stage import EvaluationStage
from hvd_dbs.data.excerpt import Excerpt
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import make_dataset
from hvd_dbs.data.request import DatasetRequest
from hvd_dbs.job.decision_log import DecisionLog, open_journal
from hvd_dbs.job.epochs import Epoch, train_epochs
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.places import places_by_rank
from hvd_dbs.job.resumption import Resumption
from hvd_dbs.job.speed_profile import SpeedProfile, open_profile
from hvd_dbs.learning_rate.dynamic import DynamicLearningRate
from hvd_dbs.ops import native
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import StepBatch, StepWork
from hvd_dbs.sampling import Cursor

_LOGGER = logging.getLogger(__name__)


class Balancer:
    """Gives each rank the local batch that it finishes in the same time as the others.

    One balancer serves one training data set, one optimizer and one `fit` at a time. All ranks
    make it with the same arguments, after `hvd.init()`.

    Args:
        global_batch_size: Samples that all ranks together process in a step.
        strategy: A preset's name ("adaptive", "dbs", "even", ...) or a `Strategy`, such as
            `strategies.static([2, 1, 1])`.
        every: When to decide: "epoch", a number of steps, or None for the strategy's own cadence.
        min_batch_size: Fewest samples of a rank, at least 1: one number, one per rank, or a dict
            by host or kind of device, such as `{"NVIDIA A100*": 256, "node7": 64}`. A host's name
            counts before shell patterns of kinds and hosts, and "*" is all others.
        max_batch_size: Most samples of a rank, as its memory allows, likewise; None: no limit.
        multiple_of: Local batch sizes are multiples of this.
        journal: File to which rank 0 writes what it hears of all ranks and decides, for
            `hvd-dbs report`; appended if the file exists. None: nowhere.
        profile: File to which rank 0 writes how fast each kind of device is, and from which the
            next training takes its first plan. None: training begins even.

    Raises:
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
        max_batch_size: BatchSizeBound | None = None,
        multiple_of: int = 1,
        journal: str | os.PathLike[str] | None = None,
        profile: str | os.PathLike[str] | None = None,
    ) -> None:
        self.collective = job.connect_for_long()
        ranks = introduce(self.collective, _versions())
        given = {
            "global_batch_size": global_batch_size,
            "strategy": identity(strategy),
            "every": every,
            "min_batch_size": min_batch_size,
            "max_batch_size": max_batch_size,
            "multiple_of": multiple_of,
            "whether there is a journal": journal is not None,  # Rank 0's path may be its own.
            "whether there is a profile": profile is not None,
        }
        self._given = {name: repr(value) for name, value in given.items()}
        agreement.require_equal(self.collective, self._given)
        # From here on all ranks compute with the same values, so all meet the same error.
        places = places_by_rank(self.collective)
        self._limits = BatchSizeLimits(min_batch_size, max_batch_size, multiple_of)
        bounds = self._limits.bounds(places, is_elastic=job.is_elastic())
        self._controller = Controller(
            strategies.resolve(strategy, every),
            whole_number("global_batch_size", global_batch_size),
            bounds,
        )
        log = DecisionLog(
            self.collective,
            self._controller,
            [place.host for place in places],
            open_journal(self.collective, journal),
        )
        file = open_profile(self.collective, profile)
        speeds = SpeedProfile(self.collective, self._controller, places, file)
        self._excerpt = Excerpt()
        self.loop = TrainingLoop(self.collective, self._controller, log, speeds)
        self._measure_links(ranks)
        self.dynamic_learning_rate = DynamicLearningRate(self.global_batch_size)
        self.loop.followers.append(self.dynamic_learning_rate.follow)
        self._resumption = Resumption(
            self.collective,
            self._controller,
            self.loop.position,
            places,
            parts={"learning_rate": self.dynamic_learning_rate},
        )

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.collective.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.collective.size

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks together process in a full step."""
        return self._controller.global_batch_size

    @property
    def strategy(self) -> Strategy:
        """Model, solver and cadence in use."""
        return self._controller.strategy

    @property
    def plan(self) -> Plan:
        """The plan last decided on; `plan.batch_sizes` is a tuple by rank."""
        return self._controller.plan

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
        a last, partial global batch is fed samples of that batch that count for nothing.

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
        error: Exception | None = None
        try:
            if shuffle_seed is not None:
                require_seed(shuffle_seed)
            request = DatasetRequest.of(
                source,
                self.global_batch_size,
                shuffle_seed=shuffle_seed,
                training=training,
                layout=layout,
                cost=cost,
                multiple_of=self._controller.bounds.multiple_of,
            )
            given, excerpt = request.identity, request.source.excerpt
        except Exception as caught:  # Whatever it is, the other ranks must not wait for this one.
            error = caught
        agreement.raise_together(self.collective, error)
        agreement.require_equal(self.collective, given)
        agreement.require_alike(self.collective, excerpt.values, excerpt.require_like)
        samples = request.source
        for warning in samples.warnings if self.rank == 0 else ():
            _LOGGER.warning("%s", warning)
        if not training:
            stage = EvaluationStage(
                samples.num_samples,
                lambda: self.rank,
                lambda: self.loop.agreed_plan.batch_sizes,
                self.loop.evaluation,
            )
            return make_dataset(samples, stage)
        self._excerpt = excerpt
        self.loop.finish_resize()
        index_stage = IndexStage(
            samples.num_samples,
            shuffle_seed,
            self.rank,
            self.plan.batch_sizes,
            samples.block_size,
            layout,
            request.costs,
        )
        index_stage.on_unwatched = self.loop.warn_of_a_part
        # The same on all ranks: so is what each of them was given.
        self._resumption.read_from(index_stage)
        return make_dataset(samples, index_stage)

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
        if initial_epoch is None:
            start = self.loop.position.start
            initial_epoch = 0 if start is None else start.epoch
        given = {"num_epochs": num_epochs, "initial_epoch": initial_epoch}
        agreement.require_equal(self.collective, {name: repr(n) for name, n in given.items()})
        # From here on all ranks compute with the same values, so all meet the same error.
        first, last = (whole_number(name, number) for name, number in reversed(given.items()))
        if first < 0:
            raise ValueError(f"initial_epoch={first} is negative. Epochs are counted from 0.")
        return train_epochs(self.loop, dataset, range(first, last))

    def resize(self, global_batch_size: int) -> None:
        """Changes the global batch size; while an epoch is open, from the next one on. Collective.

        Ranks keep their shares of it. The learning rate follows where
        `DynamicLearningRateCallback` is used. A larger global batch means fewer steps, which also
        works during a `fit`. For a smaller one, which needs more, let `fit` end, make the data set
        anew and call `fit` again, since Keras counts an epoch's steps when `fit` begins.

        Raises:
            ValueError: On all ranks, if the argument is impossible within the bounds, differs
                between ranks, or means more steps during a `fit`. Nothing is changed then.
        """
        agreement.require_equal(self.collective, {"global_batch_size": repr(global_batch_size)})
        error: Exception | None = None
        try:
            self.loop.check_resize(whole_number("global_batch_size", global_batch_size))
        except (ValueError, TypeError) as caught:
            error = caught
        agreement.raise_together(self.collective, error)
        self.loop.resize(int(global_batch_size))

    @property
    def cursor(self) -> Cursor:
        """Where training stands in the samples: where it is to go on if it ends here."""
        return self.loop.position.cursor

    def state_dict(self) -> dict[str, Any]:
        """Plan, place in the epoch and memory as plain JSON data; of time models this rank's.

        Made from the same state, the data set and the next `fit` go on behind the samples that
        are used, on any number of ranks and with any global batch size.
        """
        return self._resumption.state().plain()

    def gather_state_dict(self) -> dict[str, Any]:
        """A `state_dict` with the memory of all ranks' time models, on all ranks. Collective."""
        return self._resumption.gather().plain()

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
        self._resumption.load(state)

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
        if not isinstance(self.collective, job.ElasticCollective):
            self.load_state_dict(state)  # The ranks of other jobs do not change.
            return
        self._resumption.remember()
        self.collective.meet()
        ranks = introduce(self.collective, _versions())
        agreement.require_equal(self.collective, self._given)
        # From here on all ranks compute with the same values, so all meet the same error.
        places = places_by_rank(self.collective)
        agreement.require_alike(self.collective, self._excerpt.values, self._excerpt.require_like)
        bounds = self._limits.bounds(places, is_elastic=True)
        self._controller.change_ranks(global_batch_size, bounds)
        self.loop.change_ranks(places)
        self._measure_links(ranks)
        self.dynamic_learning_rate.follow(global_batch_size)
        self._resumption.rejoin(state, places)

    def pause(self) -> None:
        """Cancels exchanges that are under way when a training is interrupted."""
        self.collective.close()
        self.loop.abandon_training()

    def _measure_links(self, ranks: Sequence[Introduction]) -> None:
        hosts, addresses = [one.host for one in ranks], [one.addresses for one in ranks]
        self.loop.links.change_hosts(hosts, addresses, self.rank)

    @property
    def clock(self) -> StepClock:
        """This rank's clock: what it was busy with in each step."""
        return self.loop.clock

    def step_work(self) -> StepWork:
        """What this rank does in the step under way; in the graph."""
        return self.loop.step_work()

    def step_batch(self) -> StepBatch:
        """The global batch of the step under way; in the graph."""
        return self.loop.step_batch()


def _versions() -> dict[str, str]:
    """What all ranks must have alike to understand each other."""
    return {"hvd_dbs": hvd_dbs.__version__, "The native library's interface": native.INTERFACE}


def require_balancer(given: object, taker: str) -> Balancer:
    """The balancer that was given, if it is one.

    Args:
        given: What should be a balancer.
        taker: Who was given it.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(given, Balancer):
        raise TypeError(
            f"{taker} was given balancer={given!r}; expected the balancer that makes the data set, "
            f"such as balancer = hvd.Balancer(global_batch_size=512)."
        )
    return given
