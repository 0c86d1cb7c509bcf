"""The data sets of a job: all ranks agree on each of them, and training follows the last one."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import tensorflow as tf

from hvd_dbs.balancing import Controller
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.data.evaluation_stage import Evaluation, EvaluationStage
from hvd_dbs.data.fingerprint import Fingerprint
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import make_dataset
from hvd_dbs.data.request import DatasetRequest
from hvd_dbs.job.arguments import whole_seed
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.resumption import Resumption
from hvd_dbs.watchdog.activity import call_of_fit, is_evaluating

_LOGGER = logging.getLogger(__name__)


class Datasets:
    """Makes data sets, one to train on at a time.

    Args:
        collective: The job.
        controller: This rank's controller.
        loop: Gives evaluations the plan that all ranks know.
        resumption: Connects a data set to the training.

    Attributes:
        evaluation: The evaluation under way.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        loop: TrainingLoop,
        resumption: Resumption,
    ) -> None:
        self._collective, self._controller = collective, controller
        self._loop, self._resumption = loop, resumption
        self._fingerprint = Fingerprint()
        self._has_warned = False
        self.evaluation = Evaluation()
        reference = weakref.ref(self)  # TensorFlow keeps stages, which must not keep a job.

        def warn() -> None:
            if (datasets := reference()) is not None:
                datasets._warn_of_a_part()

        self.evaluation.on_unwatched = self._warn = warn
        self.evaluation.is_under_way = is_evaluating

    def make(
        self, source: Any, shuffle_seed: int | None, *, training: bool, layout: str, cost: Any
    ) -> tf.data.Dataset:
        """See `Balancer.dataset`. Collective."""
        bounds = self._controller.bounds
        with agreement.raising_together(self._collective):  # Any error: nobody waits for this rank.
            if shuffle_seed is not None:
                shuffle_seed = whole_seed(shuffle_seed)
            request = DatasetRequest.of(
                source,
                self._controller.global_batch_size,
                shuffle_seed=shuffle_seed,
                training=training,
                layout=layout,
                cost=cost,
                multiple_of=int(bounds.multiple_by_rank.max()),
            )
            if training and self._loop.is_training and call_of_fit() is not None:
                raise ValueError(
                    "balancer.dataset(source) within fit would replace the data set that fit is "
                    "trained on, whose next epoch would never begin. Make it before fit, or with "
                    "training=False if a callback evaluates on it."
                )
            samples = request.source
            identity, fingerprint = request.identity, samples.fingerprint
        agreement.require_equal(self._collective, identity)
        self._require_alike(fingerprint)
        for warning in samples.warnings if self._collective.rank == 0 else ():
            _LOGGER.warning("%s", warning)
        if not training:
            return make_dataset(samples, self._evaluation_stage(samples.num_samples))
        self._fingerprint = fingerprint
        return make_dataset(samples, self._training_stage(request))

    def change_ranks(self) -> None:
        """The job has other ranks. Collective.

        Raises:
            ValueError: On all ranks, if one of them trains on other samples.
        """
        self._require_alike(self._fingerprint)

    def _require_alike(self, fingerprint: Fingerprint) -> None:
        agreement.require_alike(self._collective, fingerprint.values, fingerprint.require_like)

    def _evaluation_stage(self, num_samples: int) -> EvaluationStage:
        reference, controller = weakref.ref(self), self._controller
        known_rank = self._collective.rank

        def rank() -> int:
            nonlocal known_rank
            if (datasets := reference()) is not None:
                known_rank = datasets._collective.rank
            return known_rank

        def batch_sizes() -> tuple[int, ...]:
            datasets = reference()
            plan = controller.plan if datasets is None else datasets._loop.agreed_plan
            return plan.batch_sizes

        return EvaluationStage(num_samples, rank, batch_sizes, self.evaluation)

    def _training_stage(self, request: DatasetRequest) -> IndexStage:
        self._loop.finish_resize()
        stage = IndexStage(
            request.source.num_samples,
            request.shuffle_seed,
            self._collective.rank,
            self._controller.batch_sizes,
            request.source.block_size,
            request.layout,
            request.costs,
        )
        stage.is_endless = request.source.is_endless
        stage.on_unwatched = self._warn
        # The same on all ranks: so is what each of them was given.
        self._resumption.read_from(stage)
        return stage

    def _warn_of_a_part(self) -> None:
        """Warns once where Keras evaluates on a rank's samples, and nobody adds up the results."""
        if self._has_warned or self._collective.size == 1 or not is_evaluating():
            return
        self._has_warned = True
        if self._collective.rank == 0:
            _LOGGER.warning(
                "model.evaluate reads each rank's part of a data set of balancer.dataset, so its "
                "results differ between ranks. Make the data set with training=False, and give "
                "evaluate callbacks=[hvd.callbacks.MetricAverageCallback(balancer=balancer)]."
            )
