"""Metrics over the samples of all ranks, from what each rank's metrics have counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

_NAME = "hvd_dbs.metric_sums"


def sum_metrics(model: keras.Model, weight: int, num_batches: int) -> None:
    """Adds up the state of a model's metrics over all ranks, in place. Collective.

    Keras's metrics keep sums (of values and weights, confusion matrices, histograms of scores),
    so a result computed from the sums over ranks is that of one process which saw all samples.
    Keras says of each variable how to put it together, `aggregation`, "sum" unless told
    otherwise; "mean" weighs by samples here, "only_first_replica" takes rank 0's.

    A `Mean` that has counted batches, not samples, on every rank (a loss of one of several outputs,
    or `update_state(loss)` in a step of one's own) would count each rank the same, however small
    its batches are. Such a mean of a rank is weighed by the rank's samples instead.

    Args:
        model: Its metrics have the same variables on all ranks.
        weight: Samples of this rank; where it has none its metrics count for nothing.
        num_batches: Steps of this rank that the samples were in.
    """
    if hvd.size() == 1:
        return
    variables = list({id(v): v for v in model.metrics_variables}.values())
    values = [v.numpy().astype(np.float64) for v in variables]
    factors = [_factor(v, weight) for v in variables]
    # Not a product with 0: what samples that do not count have left may be NaN.
    parts = [
        np.zeros(value.size) if factor == 0 else factor * value.ravel()
        for value, factor in zip(values, factors, strict=True)
    ]
    means = _means(model.metrics)
    rows = np.array([_by_samples(mean, weight, num_batches) for mean in means]).reshape(-1, 3)
    head = [float(weight), float(weight > 0)]
    with tf.device("CPU"):
        row = tf.constant(np.concatenate([head, rows.ravel(), *parts]))
        total = hvd.allreduce(row, op=hvd.Sum, name=_NAME).numpy()
    start = len(head) + rows.size
    for variable, value in zip(variables, values, strict=True):
        summed = total[start : start + value.size].reshape(value.shape)
        start += value.size
        if variable.aggregation == "mean":
            summed = summed / total[0]
        variable.assign(summed.astype(variable.dtype))
    sums = total[len(head) : len(head) + rows.size].reshape(rows.shape)
    for mean, (ranks, summed, count) in zip(means, sums.tolist(), strict=True):
        if 0 < ranks == total[1]:
            mean.total.assign(summed)
            mean.count.assign(count)


def _means(metrics: Sequence[Any]) -> list[Any]:
    """All metrics that average, also within those that hold others."""
    found: dict[int, Any] = {}
    for metric in metrics:
        inner = getattr(metric, "metrics", None) or getattr(metric, "_metrics", None) or ()
        found |= {id(one): one for one in _means(inner)}
        if isinstance(metric, keras.metrics.Mean):
            found[id(metric)] = metric
    return list(found.values())


def _by_samples(mean: Any, weight: int, num_batches: int) -> tuple[float, float, float]:
    """Whether it has counted batches here; then its total and count as if it had samples."""
    count = float(mean.count.numpy())
    if weight == 0 or not 0 < count == num_batches:
        return 0.0, 0.0, 0.0
    return 1.0, float(mean.total.numpy()) / count * weight, float(weight)


def _factor(variable: keras.Variable, weight: int) -> float:
    if variable.aggregation == "mean":
        return float(weight)
    if variable.aggregation == "only_first_replica":
        return float(hvd.rank() == 0)
    return float(weight > 0)
