"""Finds out before training how many samples of a step fit into this rank's memory."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import is_elastic
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import stage_of
from hvd_dbs.job.memory_bounds import largest_that_fits
from hvd_dbs.job.session import Session
from hvd_dbs.keras.global_losses import global_losses
from hvd_dbs.keras.micro_batched_training import MicroBatchedTraining
from hvd_dbs.keras.model_optimizers import optimizers_of, training_variables
from hvd_dbs.keras.random_streams import global_generator, seed_generators
from hvd_dbs.keras.reducing_optimizer import without_other_ranks
from hvd_dbs.tensorflow.global_batch import GlobalBatch, within
from hvd_dbs.watchdog.activity import call_of_fit

_LOGGER = logging.getLogger(__name__)

_FIRST_PART = 4
"""The first try has this part of an even share: far from any limit, and no more than two steps of
doubling before the batches that training begins with."""


def bound_by_memory(
    model: keras.Model, session: Session, training: MicroBatchedTraining, fingerprint: str
) -> None:
    """Bounds local batch sizes by what fits into each rank's memory. Collective.

    A search is made if it is wanted. In other elastic jobs a step that did not fit is what is
    known, and bounds the model that it was of.

    Each rank tries by itself, with the model's own training step and its own data. What a profile
    knows of a rank's kind of device is not tried again, nor what was found for this model before; a
    global batch that is larger than the one that fitted then is.

    Args:
        model: A compiled model that is built, in `fit`.
        session: The job.
        training: Has the model's own step.
        fingerprint: By which the model is known again.

    Raises:
        ValueError: On all ranks, if a rank's memory does not hold its fewest samples.
        Exception: On all ranks, whatever the model's step raises on one of them.
    """
    memory = session.memory
    if not (memory.is_wanted or is_elastic()):
        return
    memory.begin_training(fingerprint)
    session.loop.finish_interrupted()  # Its round knows of no new bounds.
    if memory.is_wanted:
        known = session.profile.most_samples(fingerprint)
        num_read = 0
        with agreement.raising_together(session.collective):
            if not memory.is_known(_most(session, session.position.stage)):
                if known is not None:
                    memory.note(known)
                else:
                    found, most, num_read = _search(model, session, training)
                    memory.note_found(found, most)
        # A stream that is shuffled anew has another order each time that it is read.
        most_read = session.collective.allgather(np.array([num_read])).max()
        for _ in range(num_read, most_read):
            _read(1)
    session.bound_by_memory()


def _most(session: Session, stage: IndexStage) -> int:
    """The most samples that a rank may get in a step."""
    return min(session.controller.global_batch_size, stage.num_samples)


def _dataset() -> tuple[Any, IndexStage]:
    """What `fit` was given, and its first stage."""
    call = call_of_fit()
    dataset = None if call is None else call.f_locals.get("x")
    stage = stage_of(dataset)
    if not isinstance(stage, IndexStage):
        raise ValueError(
            'max_batch_size="auto" tries the data set that fit was given, and that is none of '
            "balancer.dataset. Give max_batch_size as a number."
        )
    return dataset, stage


def _read(num_samples: int) -> Any:
    """A batch of so many samples."""
    dataset, stage = _dataset()
    with stage.looking_at(np.arange(num_samples, dtype=np.int64)):
        return next(iter(dataset))


def _search(
    model: keras.Model, session: Session, training: MicroBatchedTraining
) -> tuple[int, int, int]:
    """Most samples that fit, the most that this rank may get, and how often data were read."""
    dataset, stage = _dataset()
    controller, most = session.controller, _most(session, stage)
    start = max(1, controller.global_batch_size // controller.size // _FIRST_PART)
    num_read = 0
    with _unchanged(model), without_other_ranks():
        step = _step(model, training, dataset.element_spec)

        def fits(num_samples: int) -> bool:
            nonlocal num_read
            data, num_read = _read(num_samples), num_read + 1
            try:
                for number in tf.nest.flatten(step(data)):
                    np.asarray(number)  # Waits for the device.
            except tf.errors.ResourceExhaustedError:
                return False
            return True

        found = largest_that_fits(fits, start, most)
    gc.collect()  # The functions of the step, and what they hold on a device.
    if found == 0:
        raise ValueError(
            f"The memory of rank {session.collective.rank} does not hold a step of one sample of "
            f"{model.name}. Use a smaller model, or leave out the rank."
        )
    _LOGGER.debug("rank %d: %d of %d samples fit", session.collective.rank, found, most)
    return found, most, num_read


def _step(model: keras.Model, training: MicroBatchedTraining, spec: Any) -> Any:
    """The model's training step without the other ranks."""

    def step(data: Any) -> Any:
        with global_losses(), within(_LoneBatch(1.0, 1.0)):
            return training.plain(data)

    if model.run_eagerly:
        return step
    return tf.function(step, input_signature=[spec], autograph=False)


class _LoneBatch(GlobalBatch):
    """The batch of one rank as if there were no other."""

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor."""
        return tensor

    def loss_factor(self, denominator: tf.Tensor) -> tf.Tensor:
        """1."""
        return tf.ones([], tf.float64)


@contextlib.contextmanager
def _unchanged(model: keras.Model) -> Iterator[None]:
    """Puts back what steps within change: weights, optimizer, metrics and random seeds."""
    for optimizer in optimizers_of(model):
        if not optimizer.built:  # As the first step would.
            optimizer.build(model.trainable_variables)
    generators = [*seed_generators(model), global_generator()]
    variables = [
        *training_variables(model),
        *model.variables,
        *model.metrics_variables,
        *(generator.state for generator in generators),
    ]
    # In host memory: on the device they would take what is looked for.
    kept = [(v, v.numpy()) for v in {id(v): v for v in variables}.values()]
    old = {id(v) for v, _ in kept}
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)
        if any(id(v) not in old for v in model.metrics_variables):
            model.reset_metrics()  # Made by the first step.
