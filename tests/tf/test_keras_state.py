"""Which optimizers are part of the state of a Keras model in an elastic job."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd

pytestmark = pytest.mark.usefixtures("initialized")


def test_all_optimizers_of_a_model_are_part_of_the_state():
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    model.critic_optimizer = critic = keras.optimizers.SGD(0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"an optimizer of model .*, has no variables yet"):
        hvd.elastic.KerasState(model)
    critic.build(model.trainable_variables)
    state = hvd.elastic.KerasState(model)
    before = [variable.numpy().copy() for variable in critic.variables]
    for variable in critic.variables:
        variable.assign_add(tf.ones(variable.shape, variable.dtype))
    state.restore()
    for variable, value in zip(critic.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_model_that_is_not_compiled_has_the_optimizer_that_is_given():
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    assert hvd.elastic.KerasState(model, optimizer).all_optimizers() == [optimizer]
