"""What `hvd-dbs verify --model` takes from a user's function."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import hvd_dbs.data
from hvd_dbs.cli.verify.probe import first_difference, first_weights, look_alone
from hvd_dbs.cli.verify.random_layers import seed_states, turn_off_random_layers
from hvd_dbs.cli.verify.user_model import build, find_function, optimizers_of, samples_of
from tests.mpi import guide_models, planted_errors


def small():
    model = keras.Sequential([keras.Input([2]), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_function_is_found_by_module_and_name():
    assert find_function("tests.mpi.guide_models:lora") is guide_models.lora


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.mpi.guide_models", "names no function; expected package.module:function"),
        ("tests.mpi.guide_models:", "names no function"),
        ("tests.no_such:lora", "tests.no_such cannot be imported: ModuleNotFoundError"),
        ("tests.mpi.guide_models:no_such", "has no no_such; expected a function"),
        ("tests.mpi.guide_models:WORDS", "has something else called WORDS"),
    ],
)
def test_a_name_of_nothing_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        find_function(name)


def trained():
    model = small()
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1 / 0, "the function fails: ZeroDivisionError: division by zero."),
        (lambda: None, "returns None; expected a compiled Keras model and its samples"),
        (small, "returns a Sequential; expected"),
        (lambda: (1, 2), "returns a int first"),
        (lambda: (keras.Sequential(), 1), "not compiled"),
        (lambda: (trained(), 1), "optimizer is built"),
        (lambda: (small(), 1, {"epochs": 3}), "options epochs; expected a dict with none but map"),
    ],
)
def test_what_a_function_must_not_return(function, message):
    with pytest.raises(ValueError, match=message):
        build(function, 0)


def test_the_same_seed_builds_the_same_weights():
    weights = [build(guide_models.transformer, 3).model.get_weights() for _ in range(2)]
    assert all(np.array_equal(*pair) for pair in zip(*weights, strict=True))


def test_all_optimizers_of_a_model_are_found_once():
    model, _ = guide_models.gan()
    found = optimizers_of(model)
    assert list(found.values()) == [model.optimizer, model.g_optimizer]
    assert model.optimizer is model.d_optimizer


@pytest.mark.parametrize("wrap", [lambda x, y: (x, y), lambda x, y: stream((x, y))])
def test_samples_come_from_any_source(wrap):
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    (got_x, got_y), count = samples_of(wrap(x, y), 4, 6, seed=1)
    assert count == 6
    assert np.array_equal(got_x, x[got_y.numpy()])
    assert len(set(got_y.numpy().tolist())) == 6
    assert samples_of(wrap(x, y), 4, 100, seed=1)[1] == 10


def stream(samples):
    return hvd_dbs.data.Stream(tf.data.Dataset.from_tensor_slices(samples))


def test_random_layers_do_nothing_in_training():
    model = keras.Sequential(
        [
            keras.Input([4, 3]),
            layers.Dropout(0.5, name="dropout"),
            layers.Dropout(0.0, name="inactive"),
            layers.GaussianNoise(1.0, name="noise"),
            layers.LSTM(3, return_sequences=True, dropout=0.5, recurrent_dropout=0.5),
            layers.SpatialDropout1D(0.5, name="spatial"),
        ]
    )
    x = np.ones([2, 4, 3], np.float32)
    before = seed_states(model)
    turned_off = turn_off_random_layers(model)
    assert np.array_equal(model(x, training=True), model(x, training=False))
    names = [one.partition(" ")[0] for one in turned_off]
    assert sorted(names) == ["dropout", "lstm_cell", "noise", "spatial"]
    assert seed_states(model) == before


def test_augmentation_does_nothing_in_training():
    model = keras.Sequential([keras.Input([8, 8, 1]), layers.RandomRotation(0.5)])
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype("float32")
    assert turn_off_random_layers(model)
    assert np.array_equal(model(x, training=True), x)


def test_a_layer_that_draws_numbers_itself_is_left_on():
    model = planted_errors.noisy()[0]
    before = seed_states(model)
    assert turn_off_random_layers(model) == []
    model(np.ones([2, 6], np.float32), training=True)
    assert seed_states(model) != before


def test_weights_of_a_model_that_only_a_step_builds():
    user = build(guide_models.vae, 0)
    assert user.model.weights == []
    start, names = first_weights(user, user.data)
    assert len(start) == len(names) == 8
    others, _ = first_weights(build(guide_models.vae, 0), user.data)
    assert all(np.array_equal(*pair) for pair in zip(start, others, strict=True))


def test_a_look_leaves_weights_as_they_are_and_sees_the_gradient():
    user = build(guide_models.structured, 0)
    start, _ = first_weights(user, user.data)
    look = look_alone(user, tf.nest.map_structure(lambda one: one[:8], user.data), start)
    assert look.gradient.size > 50
    assert np.any(look.gradient)
    assert all(np.array_equal(*pair) for pair in zip(start, user.model.get_weights(), strict=True))


def test_the_first_layer_that_depends_on_other_samples_is_found():
    user = build(planted_errors.structured_layer, 0)
    start, _ = first_weights(user, user.data)
    rows = np.arange(8)

    def look(count):
        fresh = build(planted_errors.structured_layer, 0)
        return look_alone(fresh, tf.nest.map_structure(lambda one: one[:count], user.data), start)

    whole, part = look(16), look(8)
    call = first_difference(whole, part, rows, 1e-3)
    assert whole.names[whole.layers[call][0]].startswith("scale_by_valid")
    assert first_difference(whole, whole, np.arange(16), 1e-3) is None
