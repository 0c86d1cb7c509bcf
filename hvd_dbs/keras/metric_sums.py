"""Metrics over the samples of all ranks, from what each rank's metrics have counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.keras.internals import has_unbuilt_metrics, is_class_of_keras, metrics_within

MetricValues = list[tuple[keras.Variable, NDArray[Any]]]
"""Variables of metrics, and a value of each."""

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
    means = [m for m in _with_inner(model.metrics) if isinstance(m, keras.metrics.Mean)]
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


def metric_values(model: keras.Model) -> MetricValues:
    """What a model's metrics have counted, to be put back by `assign`."""
    return [(variable, variable.numpy()) for variable in model.metrics_variables]


def results_in_logs(
    model: keras.Model, values: MetricValues, logs: Mapping[str, Any], has_padding: bool
) -> dict[str, list[str]]:
    """Which of this rank's logs are what its metrics have counted: names of logs, and of results.

    A `train_step` may return a result under another name than its metric's. Such a log is known by
    its value, which several results may have. Logs that are missing are numbers of the last step,
    that a `train_step` returns, or come from callbacks.

    Args:
        model: Its metrics are afterwards what they were.
        values: What its metrics had counted when the logs were made.
        logs: Results by name.
        has_padding: Whether this rank had padding samples in the last step. They may be in logs
            that a `train_step` returns, and not in values; so any name may be that of a result.
    """
    if has_unbuilt_metrics(model):  # It has not trained.
        return {}
    now = metric_values(model)
    _assign(values)
    results = model.get_metrics_result()
    _assign(now)
    found = {}
    for name, log in logs.items():
        names = [name] if name.startswith("val_") else sorted(results)
        names = [
            one
            for one in names
            if one in results and (has_padding or np.array_equal(results[one], log, equal_nan=True))
        ]
        if names:
            found[name] = [name] if name in names and not has_padding else names
    return found


def results_over_ranks(
    collective: Collective,
    model: keras.Model,
    values: MetricValues,
    logs: dict[str, Any],
    weight: int,
    num_steps: int,
    has_padding: bool,
) -> dict[str, Any]:
    """Results over all ranks of those metrics that this rank's logs were made of. Collective.

    Metrics of Keras and classes derived from them: nobody has promised that others keep sums.

    Args:
        collective: The job.
        model: Its metrics are afterwards what they were.
        values: What its metrics had counted when the logs were made.
        logs: This rank's results, by name.
        weight: Samples of this rank.
        num_steps: Steps of the epoch.
        has_padding: Whether this rank had padding samples in the last of them.

    Returns:
        Results by name; none of what is no result of a metric on some rank, such as a number that
        a `train_step` returns, or where the metrics have been used for something else since.
    """
    others = _names_that_may_be_no_sums(model)
    stands = {
        name: [one for one in names if not any(_is_of(one, other) for other in others)]
        for name, names in results_in_logs(model, values, logs, has_padding).items()
    }
    found = agreement.allgather_json(collective, [len(values), stands])
    now = metric_values(model)
    _assign(values)
    of_ranks = [stands for _, stands in found]
    of_logs = {
        name: set.intersection(*(set(stands.get(name, ())) for stands in of_ranks))
        for name in of_ranks[0]
    }
    results = {}
    if any(of_logs.values()) and len({num_values for num_values, _ in found}) == 1:
        sum_metrics(model, weight, num_steps - int(has_padding))
        summed = model.get_metrics_result()
        results = {
            name: _plain(summed[name if name in names else min(names)])
            for name, names in sorted(of_logs.items())
            if names
        }
    _assign(now)
    return results


def _plain(result: Any) -> Any:
    """A result as Keras puts it into the logs."""
    value = np.asarray(result)
    return float(value) if value.ndim == 0 else value


def _assign(values: MetricValues) -> None:
    for variable, value in values:
        variable.assign(value)


def _with_inner(metrics: Sequence[Any]) -> list[Any]:
    """These metrics, and those that they hold."""
    found: dict[int, Any] = {}
    for metric in metrics:
        found |= {id(one): one for one in (metric, *_with_inner(metrics_within(metric)))}
    return list(found.values())


def _names_that_may_be_no_sums(model: keras.Model) -> set[str]:
    """Names of the results of metrics whose classes owe nothing to Keras's own.

    Such a one may keep the last value that it saw, for example.
    """
    names: set[str] = set()
    for metric in _with_inner(model.metrics):
        bases = [base for base in type(metric).__mro__ if base is not keras.metrics.Metric]
        if not any(is_class_of_keras(base, "metrics", "trainers") for base in bases):
            result = metric.result()
            names |= set(result) if isinstance(result, dict) else {metric.name}
    return names


def _is_of(name: str, metric_name: str) -> bool:
    """Whether a result may be that metric's: Keras adds the names of outputs, and numbers."""
    return f"_{metric_name}_" in f"_{name}_"


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
