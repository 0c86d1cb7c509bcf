"""Metrics of an epoch and of an evaluation, over all ranks."""

from __future__ import annotations

import logging
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np

from hvd_dbs.balancer import Balancer, require_balancer, session_of
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective, connect
from hvd_dbs.data.evaluation_stage import Evaluation
from hvd_dbs.keras.metric_sums import (
    MetricValues,
    metric_values,
    results_in_logs,
    results_over_ranks,
    sum_metrics,
)
from hvd_dbs.keras.model_optimizers import balancer_of

_LOGGER = logging.getLogger(__name__)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages metrics over all ranks, weighted by samples.

    Stands before callbacks that act on metrics, such as ReduceLROnPlateau.

    - With a balanced optimizer what the metrics of all ranks have counted is added up once an
      epoch, so that training metrics are those of one process that sees the same samples in the
      same steps, also those that are no averages, such as AUC. A metric that derives from
      `keras.metrics.Metric` itself is averaged, weighted by each rank's samples in the epoch; what
      is no metric of the model, such as a number that a `train_step` of one's own returns of its
      last step, by those in that step.
    - An evaluation of `balancer.dataset(..., training=False)`, as `validation_data` or with
      `model.evaluate(dataset, callbacks=[this])`, adds up what the metrics of all ranks have
      counted, before Keras computes their results: those of one process over all samples, also
      for metrics that are no averages, such as AUC. The data set must be read to its end.
    - Other validation data count the same for every rank, and so do all metrics without a
      balanced optimizer, as in Horovod, and those of an epoch in which a balancer has counted no
      sample on any rank.

    Only metrics that every rank has are averaged: what a callback of rank 0 alone adds is left as
    it is.

    Args:
        device: Kept for Horovod's signature.
        balancer: Whose evaluation data sets to look for; None: those of the optimizer's balancer.

    Raises:
        TypeError: If `device` is not text, or `balancer` not a Balancer.
    """

    def __init__(self, device: str = "", *, balancer: Balancer | None = None) -> None:
        super().__init__()
        if not isinstance(device, str):
            raise TypeError(
                f"device is a {type(device).__name__}; expected text. Give a balancer by its name: "
                f"MetricAverageCallback(balancer=balancer)."
            )
        self.device = device
        if balancer is not None:
            require_balancer(balancer, "MetricAverageCallback")
        self._balancer = balancer
        self._collective: Collective | None = None
        self._has_begun = False
        self._validation_samples = 1
        self._is_in_epoch = self._has_warned = False
        self._training_values: MetricValues | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets the ranks of the training before.

        They meet after the first epoch: DynamicBatchSizeCallback checks before that all have this.
        """
        self._collective, self._has_begun = None, True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the validation before."""
        self._validation_samples = 1
        self._training_values = None
        self._is_in_epoch = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Watches what the evaluation reads."""
        if self._is_in_epoch:  # Keras evaluates with the metrics of the training.
            self._training_values = metric_values(self.model)
        evaluation = self._evaluation
        if evaluation is not None:
            evaluation.begin()

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds up the metrics over all ranks after the last step."""
        evaluation = self._evaluation
        stage = None if evaluation is None else evaluation.stage
        if evaluation is None or stage is None:
            return
        if evaluation.is_summed:
            raise ValueError(
                f"The evaluation continues after the {stage.num_steps} steps of its data set. "
                f"Give Keras the data set of balancer.dataset(..., training=False), mapped but "
                f"not batched or repeated, and leave out steps and validation_steps."
            )
        evaluation.steps_done = batch + 1
        if evaluation.steps_done >= stage.num_steps:
            sum_metrics(self.model, stage.weight, stage.num_steps)
            evaluation.is_summed = True
            self._warn_of_other_results(set(logs or ()))

    def _warn_of_other_results(self, names: set[str]) -> None:
        """Warns once where Keras returns what `test_step` did, not the results of the metrics."""
        metrics: set[str] = set()
        for name, result in self.model.get_metrics_result().items():
            metrics |= set(result) if isinstance(result, dict) else {name}  # As Keras does in logs.
        if names == metrics or self._has_warned or hvd.size() == 1:
            return
        self._has_warned = True
        if hvd.rank() == 0:
            _LOGGER.warning(
                "test_step of %s returns %s, and its metrics are %s. Keras then reports what the "
                "last step returned, of this rank's samples alone; fit averages that over ranks. "
                "For results over all ranks return self.get_metrics_result(), and nothing else.",
                self.model.name,
                ", ".join(sorted(names)) or "nothing",
                ", ".join(sorted(metrics)) or "none",
            )

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the evaluation was one of the whole data set."""
        evaluation = self._evaluation
        if evaluation is None:
            return
        evaluation.end()
        stage = evaluation.stage
        if stage is None:
            return
        if not evaluation.is_summed:
            raise ValueError(
                f"The evaluation ended after {evaluation.steps_done} of the "
                f"{stage.num_steps} steps of its data set. Leave out steps and "
                f"validation_steps; to evaluate on a part of the samples, give that part to "
                f"balancer.dataset."
            )
        self._validation_samples = stage.weight

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the logs by those of all ranks, in place."""
        self._is_in_epoch = False
        if not self._has_begun or logs is None:
            return
        if self._collective is None:
            self._collective = connect()
        own, balancer = dict(logs), balancer_of(self.model)
        numbers = {name: value for name, value in own.items() if np.ndim(value) == 0}
        in_epoch, in_step = self._samples(balancer)
        results = results_in_logs(self.model, self._counted, own, has_padding=in_step == 0)
        found = agreement.allgather_json(self._collective, [sorted(numbers), sorted(results)])
        names, counted_by = (
            set.intersection(*map(set, lists)) for lists in zip(*found, strict=True)
        )
        weights = [in_epoch, in_step, self._validation_samples]
        row = np.array([*weights, *(float(numbers[name]) for name in sorted(names))])
        rows = self._collective.allgather(row)
        for i, name in enumerate(sorted(names), start=len(weights)):
            weight = rows[:, 2 if name.startswith("val_") else int(name not in counted_by)]
            if not weight.any():  # Nobody trained by the balancer.
                weight = np.ones(len(rows))
            counted = weight > 0
            logs[name] = float(np.average(rows[counted, i], weights=weight[counted]))
        if balancer is not None and rows[:, 0].any():
            logs.update(self._training_results(balancer, self._collective, own))

    @staticmethod
    def _samples(balancer: Balancer | None) -> tuple[float, float]:
        """This rank's samples in the epoch, and in its last step; 1 without a balancer."""
        if balancer is None:
            return 1.0, 1.0
        loop = balancer.loop
        in_epoch = loop.samples_in_epoch
        return in_epoch, loop.samples_in_step(loop.steps_done - 1) if in_epoch else 0

    def _training_results(
        self, balancer: Balancer, collective: Collective, own: dict[str, Any]
    ) -> dict[str, Any]:
        """Results over all ranks of the metrics of the epoch. Collective."""
        values, self._training_values = self._counted, None
        loop = balancer.loop
        steps = loop.steps_done
        has_padding = loop.samples_in_step(steps - 1) == 0  # Only in the last step.
        return results_over_ranks(
            collective, self.model, values, own, loop.samples_in_epoch, steps, has_padding
        )

    @property
    def _counted(self) -> MetricValues:
        """What metrics have counted of the training, also where a validation has used them."""
        return self._training_values or metric_values(self.model)

    @property
    def _evaluation(self) -> Evaluation | None:
        balancer = self._balancer or balancer_of(self.model)
        return None if balancer is None else session_of(balancer).evaluation
