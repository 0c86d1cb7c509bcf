"""Connects a balancer to Keras's training loop."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_dbs.balancer import Balancer, require_balancer, session_of
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import ElasticCollective, is_elastic
from hvd_dbs.data.evaluation_stage import EvaluationStage
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import moves_of, stage_of
from hvd_dbs.job.step_file import StepFile
from hvd_dbs.keras.batch_statistics import BatchStatistics, of_padding_samples
from hvd_dbs.keras.callback_checks import (
    callbacks_of_fit,
    require_any_batch_size,
    require_averages,
    require_same_fit,
)
from hvd_dbs.keras.global_batch import train_on_global_batches
from hvd_dbs.keras.initial_epoch import clear_initial_epoch, require_same_epoch, set_initial_epoch
from hvd_dbs.keras.internals import data_of_validation
from hvd_dbs.keras.lack_of_memory import name_lack_of_memory
from hvd_dbs.keras.layers.sync_batch_normalization import synchronize_batch_normalization
from hvd_dbs.keras.memory_search import bound_by_memory
from hvd_dbs.keras.model_fingerprint import model_fingerprint
from hvd_dbs.keras.model_optimizers import balancer_of, optimizers_of
from hvd_dbs.keras.same_weights import difference_from_rank_0
from hvd_dbs.keras.xla import turn_off_xla
from hvd_dbs.watchdog.activity import call_of_fit

_IN_FIT = "hvd_dbs_callback"


class _EndOfEpoch:
    """A true value of `model.stop_training` that means the epoch alone.

    Keras runs the same number of steps in every epoch of a `fit`; the first one has fewer where
    training continues within it. Setting `stop_training` to end the training replaces this
    value, and takes effect.
    """


class DynamicBatchSizeCallback(keras.callbacks.Callback):
    """Tells the balancer where training stands and lets it decide when a round is over.

    The logs of each epoch have these keys, the same on all ranks, for Keras's progress display,
    History, CSVLogger and other callbacks that come after this one (NaN while nothing is known):

    - `hvd_dbs/efficiency`: part of a step in which a rank computes, mean of all ranks.
    - `hvd_dbs/waiting`: part in which it waits for slower ranks; what is left is communication.
    - `hvd_dbs/step_seconds`: a step.

    Args:
        balancer: The balancer that made the data set and that the optimizer was given.

    Raises:
        TypeError: If `balancer` is not a Balancer.
        ValueError: On all ranks when training begins, or after its first step, if model, data
            set, callbacks and balancer do not belong together.
    """

    def __init__(self, balancer: Balancer) -> None:
        super().__init__()
        self.params: dict[str, Any] = {}  # Until a fit gives its own.
        self._balancer = require_balancer(balancer, "DynamicBatchSizeCallback")
        self._session = session_of(balancer)
        self._loop, self._position = balancer.loop, self._session.position
        self._evaluation = self._session.evaluation
        self._before_padding: list[tuple[tf.Variable, tf.Tensor]] = []
        self._step_file = StepFile() if balancer.rank == 0 else None
        self._steps_seen = self._num_steps = 0
        self._has_stepped = self._has_begun = False
        self._end_of_epoch = _EndOfEpoch()
        self._statistics: BatchStatistics | None = None

    def set_model(self, model: keras.Model) -> None:
        """Takes part in the training steps of the model that `fit` is called of."""
        super().set_model(model)
        name_lack_of_memory(self, self._session)
        self._micro_batches = train_on_global_batches(model, self._balancer)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that model, data set and balancer belong together, on all ranks."""
        self._require_no_other()
        collective = self._balancer.collective
        require_same_fit(self, collective)
        with agreement.raising_together(collective, (ValueError, RuntimeError)):
            self._check()
        turn_off_xla(self.model)
        self._micro_batches.warn()
        synchronize_batch_normalization(self.model)
        self._statistics = BatchStatistics(self.model, collective)
        self._before_padding = []  # Of a step that another rank's end has interrupted.
        self._has_stepped = self._has_begun = False
        is_asked_for = self._session.profile.is_used or self._session.memory.is_wanted
        fingerprint = model_fingerprint(self.model) if is_asked_for or is_elastic() else ""
        bound_by_memory(self.model, self._session, self._micro_batches, fingerprint)
        self._loop.begin_training(self.model.steps_per_execution, fingerprint)
        set_initial_epoch(self.model, self._position)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Opens the epoch for the data set, with the plan in force."""
        self._steps_seen = 0
        clear_initial_epoch(self.model, self._position)
        if not self._has_begun:
            self._has_begun = True
            epochs = self._balancer.collective.allgather(np.array([epoch]))
            require_same_epoch(epochs[:, 0].tolist())
        self._loop.begin_epoch(epoch)
        self._num_steps = self._position.num_steps_in_epoch
        if self._statistics is not None:
            self._statistics.begin_epoch()
            self._check_plan(self._statistics)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers metrics and statistics before a step in which this rank has padding samples.

        Also tells the balancer that the data of the step are asked for now.
        """
        is_last = batch == self._num_steps - 1
        if is_last and self._loop.samples_in_step(batch) == 0:
            variables = of_padding_samples(self.model)
            self._before_padding = [(v, tf.identity(v)) for v in variables]
        self._loop.begin_steps()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Takes back what samples that do not count have left; ends a round where one is over."""
        if not self._has_stepped:
            self._has_stepped = True
            self._check_first_step()
        for variable, value in self._before_padding:
            variable.assign(value)
        self._before_padding = []
        if self._step_file is not None:
            self._step_file.advance(batch + 1 - self._steps_seen)
            self._steps_seen = batch + 1
        self._loop.end_steps(batch + 1)
        if self._statistics is not None:
            self._check_plan(self._statistics)
            if batch + 1 >= self._num_steps:  # Before a validation, and before anybody saves.
                self._statistics.end_epoch(self._loop.samples_in_epoch)
        is_short = self._num_steps < self._position.num_steps
        if batch + 1 >= self._num_steps and is_short and not self.model.stop_training:
            self.model.stop_training = self._end_of_epoch

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Watches what the validation reads."""
        self._check_validation_data()
        self._evaluation.begin()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps a validation out of the measured steps."""
        clock, evaluation = self._balancer.clock, self._evaluation
        clock.restart()
        evaluation.end()
        if evaluation.stage is not None and not evaluation.is_summed:
            raise ValueError(
                "Each rank has validated on its part of the samples alone. Put "
                "hvd.callbacks.MetricAverageCallback() into the callbacks of fit, before those "
                "that act on metrics."
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Lets all ranks decide on the plan of the next epoch."""
        if self.model.stop_training is self._end_of_epoch:
            self.model.stop_training = False
        if self._statistics is not None:  # Where the epoch was stopped before its last step.
            self._statistics.end_epoch(self._loop.samples_in_epoch)
        self._loop.end_epoch()
        if logs is not None:  # Keras gives the callbacks after this one the same dict.
            metrics = vars(self._loop.metrics)
            logs.update({f"hvd_dbs/{name}": value for name, value in metrics.items()})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Lets go of the data set."""
        self.params.pop(_IN_FIT, None)
        clear_initial_epoch(self.model, self._position)
        self._position.warn_if_over()
        self._loop.end_training()

    def _check_plan(self, statistics: BatchStatistics) -> None:
        if self._balancer.rank == 0:
            plan = self._loop.agreed_plan
            statistics.check_plan(plan.batch_sizes)

    def _require_no_other(self) -> None:
        """One callback in a `fit` tells the balancer of its steps.

        Not agreed on with the other ranks: who has two would take part in one exchange more.
        """
        # Keras gives all callbacks of a fit the same dict, and those of each fit another one.
        if _IN_FIT in self.params:
            raise ValueError(
                "fit was given DynamicBatchSizeCallback twice, and each step would count twice. "
                "Leave one of them out."
            )
        self.params[_IN_FIT] = self._balancer

    def _check_first_step(self) -> None:
        """Whether all ranks train the same model on the balancer's data is seen after a step."""
        self._position.check_reading()
        self._position.check_values()
        collective = self._balancer.collective
        error: Exception | None = None
        difference = difference_from_rank_0(collective, self.model.trainable_variables)
        if difference is not None:
            error = ValueError(
                f"This rank does not train the same model as rank 0: after the first step, "
                f"{difference}. All ranks begin with the same weights where fit has "
                f"hvd.callbacks.BroadcastGlobalVariablesCallback(0), after callbacks that load "
                f"weights on one rank alone, and keep them where every optimizer that changes them "
                f"is a hvd.DistributedOptimizer."
            )
        agreement.raise_together(collective, error)

    def _check_validation_data(self) -> None:
        """A validation on a training data set would deadlock: no epoch opens for it.

        Not agreed on with the other ranks: they may validate on nothing.
        """
        # Keras tells callbacks nothing of the data; where it keeps them elsewhere, this is silent.
        stage = stage_of(data_of_validation(self.model))
        if isinstance(stage, IndexStage):
            raise ValueError(
                "validation_data is a data set of balancer.dataset that is there to train on. "
                "Make one for it: balancer.dataset(source, training=False)."
            )
        if isinstance(stage, EvaluationStage) and not stage.announces_to(self._evaluation):
            raise ValueError(
                "validation_data is a data set of another balancer than this one's, and nobody "
                "would add up what the ranks find in their parts of it. Make it with the balancer "
                "that DynamicBatchSizeCallback has: balancer.dataset(source, training=False)."
            )

    def _names_of_optimizers(self) -> str:
        return ", ".join(type(one).__name__ for one in optimizers_of(self.model)) or "none"

    def _check(self) -> None:
        collective = self._balancer.collective
        if isinstance(collective, ElasticCollective) and not collective.has_met:
            raise RuntimeError(
                "The ranks of this elastic job have not met. Call fit in a function decorated with "
                "hvd.elastic.run, with hvd.elastic.KerasState(model, ...) as its argument."
            )
        if not tf.config.experimental.get_synchronous_execution():
            raise ValueError(
                "tf.config.experimental.set_synchronous_execution(False) lets a step go on after "
                "its end, so ranks could decide on their plans after different ones. Leave it out."
            )
        if balancer_of(self.model) is not self._balancer:
            raise ValueError(
                f"None of the model's optimizers ({self._names_of_optimizers()}) weighs gradients "
                f"by this balancer. Make each that trains the model with "
                f"hvd.DistributedOptimizer(optimizer, balancer=balancer), and compile the model "
                f"with it or keep it as an attribute of the model."
            )
        self._micro_batches.check()
        call = call_of_fit()  # Keras tells callbacks nothing of the data.
        if call is not None and (moves := moves_of(call.f_locals.get("x"))):
            raise ValueError(
                f"The data set that fit was given has {moves[-1]}(...) downstream of "
                f"balancer.dataset, so batches would not have the samples that gradients are "
                f"weighted by. "
                f"balancer.dataset(source, shuffle_seed=7) shuffles; what else moves samples "
                f"or keeps batches belongs into the source. map and prefetch may follow."
            )
        if collective.size > 1:
            require_averages(callbacks_of_fit())
        given, expected = self.params.get("steps"), self._loop.position.num_steps
        if given != expected:
            raise ValueError(
                f"fit runs {given} steps an epoch but the balancer's data set has {expected}. "
                f"Give fit the data set of balancer.dataset, mapped but not batched, filtered or "
                f"repeated, and leave out steps_per_epoch; an endless hvd.data.Stream has the "
                f"steps_per_epoch that fit gets."
            )
        require_any_batch_size(self.model, self._session)
