"""What layers compute of batches, and each rank of its own: one model for all ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.keras.internals import all_layers, own_state
from hvd_dbs.keras.layers.sync_batch_normalization import Synchronized
from hvd_dbs.keras.random_streams import seed_generators
from hvd_dbs.keras.same_weights import difference_from_rank_0

_LOGGER = logging.getLogger(__name__)
_NAME = "hvd_dbs.batch_statistics"

_FEW_SAMPLES = 8
"""Statistics of fewer samples are noisy: the variance of 8 normal values has a standard error of
half of itself. Wu and He, "Group Normalization", 2018, find that ImageNet training loses about one
point of accuracy with 8 images a worker instead of 32, and nearly four points with 4."""

_UNEVEN = 4
"""Shares that differ by this factor: the error of a mean goes with the root of the samples, so it
is twice as large on one rank as on another."""


class BatchStatistics:
    """Moving statistics that each rank takes of its own batches, during a `fit`.

    Each rank normalizes by its own batch, as in Horovod. Without more, each rank would evaluate and
    save a model of its own.

    Args:
        model: The model that is trained.
        collective: The job.
    """

    def __init__(self, model: keras.Model, collective: Collective) -> None:
        self._model = model
        self._collective = collective
        self._has_compared = False
        self._is_averaged = True
        self._has_warned = False

    def begin_epoch(self) -> None:
        """Statistics are each rank's own from here on."""
        self._is_averaged = False

    def end_epoch(self, num_samples: int) -> None:
        """Averages the statistics over ranks, once in an epoch. Collective.

        Args:
            num_samples: Samples of this rank in the epoch, which are the weight of its statistics.
        """
        if self._is_averaged:
            return
        self._is_averaged = True
        if not self._has_compared:
            self._has_compared = True
            self._compare_other_layers()
        variables = _of_own_batches(self._model)
        if not variables or hvd.size() == 1:
            return
        own = [v.numpy().astype(np.float64).ravel() for v in variables]
        with tf.device("CPU"):
            weighted = np.append(np.concatenate(own), 1.0) * num_samples
            # Where nobody has trained there is nothing to average, and own values may be NaN.
            weighted = weighted if num_samples else np.zeros_like(weighted)
            sums = hvd.allreduce(weighted, op=hvd.Sum, name=_NAME).numpy()
        if sums[-1] == 0:
            return
        means = np.split(sums[:-1] / sums[-1], np.cumsum([values.size for values in own]))
        for variable, mean in zip(variables, means, strict=False):
            variable.assign(mean.reshape(variable.shape).astype(variable.dtype.as_numpy_dtype))

    def _compare_other_layers(self) -> None:
        """Warns if a layer of another kind has a state that ranks have different ones of."""
        variables = _of_other_layers(self._model)
        if not variables:
            return
        difference = difference_from_rank_0(self._collective, variables)
        texts = agreement.allgather_text(self._collective, difference or "")
        if self._collective.rank == 0 and any(texts):
            _LOGGER.warning(
                "A layer computes a state of each rank's own batches: after the first epoch, on "
                "another rank than 0, %s. Each rank evaluates and saves its own. Average what the "
                "layer computes, or its state in on_epoch_end, with hvd.allreduce.",
                next(text for text in texts if text),
            )

    def check_plan(self, batch_sizes: Sequence[int]) -> None:
        """Warns once if a rank's batch is a poor sample, or ranks differ much. Not collective."""
        least, most = min(batch_sizes), max(batch_sizes)
        is_poor = least < _FEW_SAMPLES or most >= _UNEVEN * least
        if self._has_warned or not is_poor or len(batch_sizes) == 1:
            return
        self._has_warned = True
        if _of_own_batches(self._model):
            _LOGGER.warning(
                "BatchNormalization normalizes by each rank's own batch, and local batch sizes are "
                "%s: statistics of few samples are noisy (fewer than %d), and so are those of "
                "ranks with a small share (a factor of %d). hvd.layers.SyncBatchNormalization, or "
                "BatchNormalization(synchronized=True), normalizes by the global batch.",
                list(batch_sizes),
                _FEW_SAMPLES,
                _UNEVEN,
            )


def of_padding_samples(model: keras.Model) -> list[tf.Variable]:
    """What padding samples change that count for nothing: metrics, and state of this rank's own.

    Not the statistics of synchronized layers, which are those of the other ranks' samples, nor
    random seeds, whose counters are the same on all ranks, nor what spectral normalization computes
    of weights alone.
    """
    shared = {id(generator.state) for generator in seed_generators(model)}
    kinds = Synchronized, keras.layers.SpectralNormalization
    layers = [one for one in all_layers(model) if isinstance(one, kinds)]
    shared |= {id(variable) for layer in layers for variable in layer.weights}
    variables = model.non_trainable_variables + model.metrics_variables
    return [variable.value for variable in variables if id(variable) not in shared]


def _of_own_batches(model: keras.Model) -> list[tf.Variable]:
    """Moving statistics of layers that are trained and not synchronized."""
    layers = [
        layer
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not isinstance(layer, Synchronized)
        and layer.trainable
    ]
    found = {id(v): v.value for layer in layers for v in layer.non_trainable_variables}
    return list(found.values())


def _of_other_layers(model: keras.Model) -> list[keras.Variable]:
    """What layers that are trained keep besides weights, other than batch normalization.

    Not the state of a stateful recurrent layer, which belongs to the samples.
    """
    layers = [
        layer
        for layer in all_layers(model)
        if layer.trainable
        and not isinstance(layer, keras.layers.BatchNormalization)
        and not getattr(layer, "stateful", False)
    ]
    return list({id(v): v for layer in layers for v in own_state(layer)}.values())
