"""A balanced job as one rank holds it: what `Balancer` joins together and hides from its users."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

import hvd_dbs
from hvd_dbs.balancing import Plan
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import ElasticCollective, connect_for_long, is_elastic
from hvd_dbs.comm.introduction import Introduction, introduce
from hvd_dbs.comm.links import LinkMeter
from hvd_dbs.data.evaluation_stage import Evaluation
from hvd_dbs.job.arguments import BalancerArguments, whole_number
from hvd_dbs.job.balancer_state import BalancerState
from hvd_dbs.job.collective_devices import require_joinable_collectives
from hvd_dbs.job.datasets import Datasets
from hvd_dbs.job.decision_log import DecisionLog, open_journal
from hvd_dbs.job.epochs import Epoch, agreed_epochs, train_epochs
from hvd_dbs.job.lack_of_memory import explain_lack_of_memory
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.memory_bounds import MemoryBounds, within_memory
from hvd_dbs.job.observers import Observer, RankEvent
from hvd_dbs.job.observers.observer import as_observer
from hvd_dbs.job.observers.strategy_gains import StrategyGains
from hvd_dbs.job.places import places_by_rank
from hvd_dbs.job.position import TrainingPosition
from hvd_dbs.job.resumption import Resumption
from hvd_dbs.job.speed_profile import SpeedProfile, open_profile
from hvd_dbs.learning_rate.dynamic import DynamicLearningRate
from hvd_dbs.ops import native
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import StepSamples

_LOGGER = logging.getLogger(__name__)


class Session:
    """The ranks of a job, their controller, the training and its data.

    All ranks make it with the same arguments, after `hvd.init()`.

    Args:
        arguments: What the balancer was given.

    Attributes:
        collective: The job.
        controller: This rank's controller.
        memory: What this rank has found out about its memory.
        loop: Follows a training from step to step.
        profile: What is known of kinds of device from other trainings.
        learning_rate: The factor on the learning rate that follows the global batch size.
        resumption: Saves the session's state and loads it.
        datasets: Makes data sets.
        micro_batch_size: Samples of this rank's micro-batches; None: it computes a local batch as
            a whole.

    Raises:
        ValueError: On all ranks, if an argument is impossible or differs between ranks.
        RuntimeError: If Horovod is not initialized; on all ranks, if they have different versions
            of hvd_dbs, or their devices cannot join in one collective operation.
    """

    def __init__(self, arguments: BalancerArguments) -> None:
        self.collective = connect_for_long()
        ranks = introduce(self.collective, _versions())
        self._given, self._limits = arguments.identity, arguments.limits
        agreement.require_equal(self.collective, self._given)
        # From here on all ranks compute with the same values, so all meet the same error.
        places = self._places()
        self._bounds = self._limits.bounds(places, is_elastic=is_elastic())
        self.micro_batch_size = self._micro_batch_size(places)
        self.controller = arguments.controller(self._bounds)
        self.learning_rate = DynamicLearningRate(self.controller.global_batch_size)
        self._links = LinkMeter()
        self._measure_links(ranks)
        journal = open_journal(self.collective, arguments.journal)
        hosts = [place.host for place in places]
        file = open_profile(self.collective, arguments.profile)
        self.memory = MemoryBounds(self._limits.is_searched)
        self.profile = SpeedProfile(self.collective, self.controller, places, file)
        self.loop = TrainingLoop(
            self.collective,
            self.controller,
            log=DecisionLog(self.collective, self.controller, hosts, journal),
            profile=self.profile,
            links=self._links,
            on_resize=self.learning_rate.follow,
        )
        if self.controller.strategy.name == "observe":
            self.loop.log.add(StrategyGains())
        parts = {"learning_rate": self.learning_rate}
        self.resumption = Resumption(self.collective, self.controller, self.position, places, parts)
        self.datasets = Datasets(self.collective, self.controller, self.loop, self.resumption)

    @property
    def clock(self) -> StepClock:
        """This rank's clock."""
        return self.loop.clock

    @property
    def position(self) -> TrainingPosition:
        """Where training stands."""
        return self.loop.position

    @property
    def samples(self) -> StepSamples:
        """What the graph reads of the step under way."""
        return self.loop.samples

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation under way."""
        return self.datasets.evaluation

    def epochs(
        self, dataset: tf.data.Dataset, num_epochs: int, initial_epoch: int | None
    ) -> Iterator[Epoch]:
        """See `Balancer.epochs`. Collective."""
        if self.memory.is_wanted:
            raise ValueError(
                'max_batch_size="auto" is found by fit, and a loop of your own is not looked into. '
                "Give max_batch_size as a number, or micro_batch_size."
            )
        if initial_epoch is None:
            initial_epoch = self.position.start_epoch or 0
        explain_lack_of_memory(self)
        numbers = agreed_epochs(self.collective, num_epochs, initial_epoch)
        return train_epochs(self.loop, dataset, numbers)

    def observe(self, observers: Sequence[Observer | Callable[[RankEvent], None]]) -> None:
        """See `Balancer.observe`."""
        for observer in [as_observer(one) for one in observers]:
            self.loop.log.add(observer)

    def resize(self, global_batch_size: int) -> None:
        """See `Balancer.resize`. Collective."""
        agreement.require_equal(self.collective, {"global_batch_size": repr(global_batch_size)})
        if not self.loop.is_training:
            self.controller.bounds = self._bounds  # The next fit may be of a model that fits.
        with agreement.raising_together(self.collective, (ValueError, TypeError)):
            self.loop.check_resize(whole_number("global_batch_size", global_batch_size))
        self.loop.resize(int(global_batch_size))

    def state(self) -> BalancerState:
        """See `Balancer.state_dict`."""
        state = self.resumption.state()
        if not self.loop.is_training:
            return state
        # While a round is under way rank 0 may know what the others do not.
        return state.with_plan(self.loop.agreed_plan.batch_sizes)

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Balancer.load_state_dict`. Collective."""
        self.loop.finish_interrupted()  # Its plan would replace the state's on all ranks but 0.
        self.resumption.load(state)

    def rejoin(self, state: Mapping[str, Any], global_batch_size: int) -> None:
        """See `Balancer.rejoin`. Collective."""
        if not isinstance(self.collective, ElasticCollective):
            self.load(state)  # The ranks of other jobs do not change.
            return
        self.resumption.remember()
        self.collective.meet()
        ranks = introduce(self.collective, _versions())
        agreement.require_equal(self.collective, self._given)
        # From here on all ranks compute with the same values, so all meet the same error.
        places = self._places()
        self.datasets.change_ranks()
        self._bounds = self._limits.bounds(places, is_elastic=True)
        bounds = within_memory(self._bounds, self.memory.by_rank(self.collective))
        self.micro_batch_size = self._micro_batch_size(places)
        self.controller.change_ranks(global_batch_size, bounds)
        self.loop.change_ranks(places)
        self._measure_links(ranks)
        self.learning_rate.follow(global_batch_size)
        self.resumption.rejoin(state, places)

    def bound_by_memory(self) -> None:
        """Holds the bounds that were given, and what all ranks have found out. Collective.

        What bounded another model does not bound this one. A plan that never changes is made anew
        within the bounds; others go on from the one in force.

        Raises:
            ValueError: On all ranks, if no plan is left within them; nothing is changed then.
        """
        controller, found = self.controller, self.memory.by_rank(self.collective)
        bounds = within_memory(self._bounds, found)
        strategy, in_force = controller.strategy, controller.plan.samples
        plan = Plan.proportional(
            controller.global_batch_size,
            strategy.start_shares(controller.size) if strategy.keeps_plan else in_force,
            bounds,
        )
        if self.collective.rank == 0 and bounds != controller.bounds:
            _LOGGER.info("memory bounds local batch sizes to %s", list(bounds.maximum))
        controller.bounds = bounds
        controller.adopt(plan, controller.steps_to_next)
        self.profile.note_most_samples(found)

    def pause(self) -> None:
        """See `Balancer.pause`."""
        if not isinstance(self.collective, ElasticCollective):
            self.loop.end_training()  # The same ranks go on, and use the same collective.
            return
        self.collective.close()
        self.loop.abandon_training()

    def _places(self) -> list[Place]:
        places = places_by_rank(self.collective)
        require_joinable_collectives(self.collective, places[self.collective.rank].host)
        return places

    def _micro_batch_size(self, places: Sequence[Place]) -> int | None:
        sizes = self._limits.micro_batches.sizes(places, is_elastic=is_elastic())
        return sizes[self.collective.rank]

    def _measure_links(self, ranks: Sequence[Introduction]) -> None:
        hosts, addresses = [one.host for one in ranks], [one.addresses for one in ranks]
        self._links.change_hosts(hosts, addresses, self.collective.rank)


def _versions() -> dict[str, str]:
    """What all ranks must have alike to understand each other."""
    return {"hvd_dbs": hvd_dbs.__version__, "The native library's interface": native.INTERFACE}
