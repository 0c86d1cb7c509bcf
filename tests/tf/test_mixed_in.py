"""What Keras saves of objects that have more methods than their class says."""

from __future__ import annotations

import keras
import numpy as np

import hvd_dbs.keras as hvd


@keras.saving.register_keras_serializable("tests")
class OwnAdam(keras.optimizers.Adam):
    """An optimizer class of the user's own."""


def test_a_registered_optimizer_is_saved_by_its_registered_name(tmp_path):
    """Once, Keras could not locate the class when it loaded the model."""
    hvd.init()
    for balancer in (None, hvd.Balancer(4)):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(OwnAdam(0.1), balancer=balancer), "mse")
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert type(loaded.optimizer) is OwnAdam
        assert loaded.predict(np.ones((1, 2)), verbose=0).shape == (1, 1)
        again = hvd.load_model(tmp_path / "model.keras", balancer=balancer)
        assert again.optimizer.balancer is balancer and isinstance(again.optimizer, OwnAdam)
