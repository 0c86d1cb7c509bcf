"""Random numbers that differ between ranks, and are the same in each run."""

from __future__ import annotations

import random
from math import gcd
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from hvd_dbs.keras.internals import all_layers, global_seed_generator, seed_generators_of
from hvd_dbs.tensorflow.variables import broadcast_arrays

_SEEDS = 2**31 - 2
"""Keras draws by a seed modulo this many."""

_GLOBAL_SEEDS = 933199
"""Likewise for Keras's global generator, once it has made a step."""

_MICRO_STEP = round(_SEEDS * (2**0.5 - 1))
"""From one micro-batch's seed to the next one's. Ranks are a multiple of another irrational part
of the seeds apart, so that their micro-batches have other seeds."""

_SPLIT = "_hvd_dbs_split"
"""Attribute of a seed generator: the seed that this rank's was made of, and this rank's."""


def split_random_seeds(model: keras.Layer, root_rank: int = 0) -> None:
    """Gives each rank random streams of its own, made of the seeds of one rank. Collective.

    Dropout, noise and random augmentation within a model draw from generators that hold a seed and
    a counter (`keras.random.SeedGenerator`), and `keras.random` functions without a seed from
    Keras's global one. All ranks get the seeds and counters of `root_rank`; each then replaces the
    seeds by its own. Rank 0 keeps the seeds as they are. With the same seeds and number of the rank
    the streams are the same in each run. Calling it again before a number is drawn changes nothing.

    `BroadcastGlobalVariablesCallback` does this by itself. A loop of one's own calls it after the
    variables were broadcast: `model.variables` contains the seeds, so that all ranks have the same
    afterwards.

    Args:
        model: A model, or a layer, such as one that augments within a data set.
        root_rank: Whose seeds the streams are made of.

    Raises:
        TypeError: If it is neither a model nor a layer.
        ValueError: On all ranks, if their models have different numbers of generators.

    Example:
        >>> hvd.broadcast_variables(model.variables, root_rank=0)  # doctest: +SKIP
        >>> hvd.split_random_seeds(model)  # doctest: +SKIP
    """
    if not isinstance(model, keras.Layer):
        raise TypeError(
            f"split_random_seeds was given a {type(model).__name__}; expected a Keras model or "
            f"layer. Give the one whose layers draw random numbers."
        )
    generators = [*seed_generators(model), global_generator()]
    states = np.array([_whole_state(generator) for generator in generators], np.int64)
    (states,) = broadcast_arrays([states], root_rank)
    moduli = [*[_SEEDS] * (len(generators) - 1), _GLOBAL_SEEDS]
    for generator, modulus, (seed, count) in zip(generators, moduli, states.tolist(), strict=True):
        own = _seed_of_rank(seed, hvd.rank(), modulus)
        generator.state.assign([own, count])
        setattr(generator, _SPLIT, (seed, own))


def seed_generators(model: keras.Layer) -> list[Any]:
    """The seed generators of a model and all layers within it, each once, in a fixed order."""
    found = {
        id(generator): generator
        for layer in all_layers(model)
        for generator in seed_generators_of(layer)
    }
    return list(found.values())


class MicroBatchSeeds:
    """Random streams of micro-batches: each draws from seeds of its own, at the same counters.

    Afterwards seeds and counters are those of a step of one batch, so that counters are the same
    on ranks with different numbers of micro-batches.

    Args:
        model: The model whose step begins; in the graph of it.
    """

    def __init__(self, model: keras.Model) -> None:
        states = [generator.state for generator in seed_generators(model)]
        self._states = [(state, tf.identity(state.value)) for state in states]

    def begin(self, i: tf.Tensor | int) -> None:
        """Sets the seeds of micro-batch `i`; the first one has those of the step."""
        for state, before in self._states:
            seed = (tf.cast(before[0], tf.int64) + tf.cast(i, tf.int64) * _MICRO_STEP) % _SEEDS
            first = tf.where(i == 0, before[0], tf.cast(seed, before.dtype))
            state.assign(tf.stack([first, before[1]]))

    def end(self) -> None:
        """Puts the step's seeds back, with the counters after a micro-batch."""
        for state, before in self._states:
            state.assign(tf.stack([before[0], state.value[1]]))


def _whole_state(generator: Any) -> list[int]:
    """Seed and counter of a generator; of one that was split, the seed that it was made of."""
    seed, count = (int(word) for word in generator.state.value.numpy())
    whole, own = getattr(generator, _SPLIT, (seed, seed))
    return [whole if own == seed else seed, count]


def _seed_of_rank(seed: int, rank: int, modulus: int) -> int:
    """Seeds of all ranks that differ from each other, and from those of seeds close to this one.

    Steps by the golden section spread any number of ranks evenly: two of the first 16,384 are
    at least 118,000 seeds apart, where there are 2**31.
    """
    if rank == 0:
        return seed
    step = round(modulus * (5**0.5 - 1) / 2)
    while gcd(step, modulus) > 1:
        step += 1
    return (seed + rank * step) % modulus


def global_generator() -> Any:
    """Keras's global generator, which its first use would make, of Python's random numbers.

    Those are as before afterwards: what a script draws does not depend on this.
    """
    state = random.getstate()
    try:
        return global_seed_generator()
    finally:
        random.setstate(state)
