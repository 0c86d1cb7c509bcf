"""Metrics over the samples of all ranks, from what each rank's metrics have counted."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

_NAME = "hvd_dbs.metric_sums"


def sum_metrics(model: keras.Model, weight: int) -> None:
    """Adds up the state of a model's metrics over all ranks, in place. Collective.

    Keras's metrics keep sums (of values and weights, confusion matrices, histograms of scores),
    so a result computed from the sums over ranks is that of one process which saw all samples.
    Keras says of each variable how to put it together, `aggregation`, "sum" unless told
    otherwise; "mean" weighs by samples here, "only_first_replica" takes rank 0's.

    Args:
        model: Its metrics have the same variables on all ranks.
        weight: Samples of this rank; where it has none its metrics count for nothing.
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
    with tf.device("CPU"):
        row = tf.constant(np.concatenate([[float(weight)], *parts]))
        total = hvd.allreduce(row, op=hvd.Sum, name=_NAME).numpy()
    start = 1
    for variable, value in zip(variables, values, strict=True):
        summed = total[start : start + value.size].reshape(value.shape)
        start += value.size
        if variable.aggregation == "mean":
            summed = summed / total[0]
        variable.assign(summed.astype(variable.dtype))


def _factor(variable: keras.Variable, weight: int) -> float:
    if variable.aggregation == "mean":
        return float(weight)
    if variable.aggregation == "only_first_replica":
        return float(hvd.rank() == 0)
    return float(weight > 0)
