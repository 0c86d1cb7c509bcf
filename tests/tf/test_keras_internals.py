"""Private parts of Keras that hvd_dbs relies on are in one place, and mean what it expects."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.keras import internals
from hvd_dbs.watchdog.activity import call_of_fit

PACKAGE = Path(__file__).resolve().parents[2] / "hvd_dbs"
PRIVATE = re.compile(
    r"keras\.src\b|\._(?:flatten_layers|symbolic_build|distributed_dataset|flat_losses|compile_loss"
    r"|aggregate_additional_loss|compile_config|loss_tracker|compute_loss|call_has_training_arg"
    r"|seed_generators|initial_epoch|momentums|iterations|losses"
    r"|trainable_variables|non_trainable_variables)\b|\"_(?:flat_losses|distributed_dataset"
    r"|eval_epoch_iterator|trainable_variables|metrics)\""
)


class Nested(keras.layers.Layer):
    """Layers in attributes and containers, which `model.layers` does not name."""

    def __init__(self):
        super().__init__()
        self.inside = [keras.layers.Dense(2), keras.layers.Dropout(0.5, seed=3)]
        self.seen = self.add_weight(name="seen", shape=(), trainable=False)

    def build(self, shape):
        self.inside[0].build(shape)

    def call(self, x, training=False):
        self.add_loss(keras.ops.sum(x))
        return self.inside[1](self.inside[0](x), training=training)


@pytest.fixture(scope="module")
def trained():
    """A model after a `fit` of one step, and the first epoch of that."""
    model = keras.Sequential(
        [keras.layers.Input((2,)), Nested(), keras.layers.Dense(1, activity_regularizer="l2")]
    )
    optimizer = keras.optimizers.RMSprop(0.1, momentum=0.5, gradient_accumulation_steps=2)
    model.compile(optimizer, loss=[keras.losses.MeanSquaredError()], run_eagerly=True)
    internals.set_initial_epoch(model, 3)
    history = model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=1, epochs=5, verbose=0)
    internals.set_initial_epoch(model, None)
    return model, history.epoch


def test_no_other_module_looks_into_private_parts():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "internals.py"]
    found = {
        f"{path.relative_to(PACKAGE)}: {match[0]}"
        for path in others
        for match in PRIVATE.finditer(path.read_text())
    }
    assert found == set()


def test_all_layers_and_their_state(trained):
    model, _ = trained
    nested, dense = model.layers
    found = internals.all_layers(model)
    assert found[0] is model and len(found) == len({id(one) for one in found})
    assert {id(one) for one in found} >= {id(one) for one in (nested, dense, *nested.inside)}
    assert internals.all_layers(nested, include_self=False) == nested.inside
    assert internals.is_built(model) and not internals.is_built(keras.layers.Dense(1))
    assert [v.path for v in internals.own_state(nested)] == [nested.seen.path]
    generators = [one for layer in found for one in internals.seed_generators_of(layer)]
    assert generators == [nested.inside[1].seed_generator]


def test_an_initial_epoch_is_where_fit_begins(trained):
    assert trained[1] == [3, 4]


def test_variables_of_optimizers(trained):
    model, _ = trained
    optimizer = model.optimizer
    paths = [one.path for one in model.trainable_variables]
    assert [one.path for one in internals.trained_by(optimizer)] == paths
    buffers = internals.momentums_of(optimizer)
    assert len(buffers) == len(paths) and all(np.any(one.numpy()) for one in buffers[-1:])
    # Two epochs of four calls, two for each update.
    assert int(internals.num_calls_of(optimizer)) == 8 and int(optimizer.iterations) == 4


def test_losses_of_a_model(trained):
    model, _ = trained
    nested, dense = model.layers
    assert [type(one.loss).__name__ for one in internals.compiled_losses(model)] == [
        "MeanSquaredError"
    ]
    model(np.ones((1, 2)))
    assert [float(one) for one in internals.losses_of_call(nested)] == [2.0]
    assert len(internals.losses_of_call(dense)) == 1
    seen = []

    def wrap(plain):
        return lambda loss: seen.append(float(loss)) or plain(loss)

    with internals.method_by(model, internals.ADDED_LOSSES, wrap):
        model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    assert 2.0 in seen and len(seen) == 2
    model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    assert len(seen) == 2


def test_reductions_are_where_losses_and_metrics_end(monkeypatch):
    losses, metrics = internals.reduction_modules()
    plain = getattr(losses, internals.LOSS_REDUCTION)
    monkeypatch.setattr(losses, internals.LOSS_REDUCTION, lambda *a, **k: 5 * plain(*a, **k))
    assert float(keras.losses.MeanSquaredError()([[0.0]], [[1.0]])) == 5.0
    halved = getattr(metrics, internals.METRIC_REDUCTION)
    monkeypatch.setattr(
        metrics,
        internals.METRIC_REDUCTION,
        lambda values, *a, **k: halved(keras.ops.multiply(values, 0.5), *a, **k),
    )
    mean = keras.metrics.Mean()
    mean.update_state([4.0])
    assert float(mean.result()) == 2.0


def test_a_model_is_built_for_the_elements_of_data():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    model = Plain()
    model.compile("sgd", loss="mse")
    data = tf.data.Dataset.from_tensors((tf.ones([2, 3]), tf.ones([2, 1])))
    internals.build_for(model, data.element_spec)
    assert internals.is_built(model) and model.dense.kernel.shape == (3, 1)
    assert model.optimizer.built
    seen = []

    def look(logs):
        iterator = call_of_fit().f_locals["epoch_iterator"]
        seen.append(internals.data_of_epoch(iterator).element_spec)

    model.fit(data, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_begin=look)])
    assert [spec.shape.as_list() for spec in seen[0]] == [[2, 3], [2, 1]]


def test_what_is_keras_own():
    assert internals.is_of_keras(keras.layers.Dense(1), "layers")
    assert not internals.is_of_keras(Nested(), "layers")
    assert internals.is_class_of_keras(keras.metrics.Mean, "metrics", "trainers")


def test_the_global_seed_generator_is_that_of_random_functions():
    keras.utils.set_random_seed(5)
    generator = internals.global_seed_generator()
    before = generator.state.numpy().copy()
    keras.random.uniform((1,))
    assert not np.array_equal(generator.state.numpy(), before)


def test_the_parts_of_a_training_step_do_what_the_step_does(trained):
    model, _ = trained
    x, y = np.full((4, 2), 2.0), np.ones((4, 1))
    assert internals.has_step_of_keras(model.train_step)
    assert not internals.has_step_of_keras(functools.partial(model.train_step))
    values = model.get_weights()  # Seeds of its dropout too.
    reported = model.train_on_batch(x, y, return_dict=True)["loss"]
    model.set_weights(values)
    y_pred = internals.predictions_of_step(model, x)
    loss = internals.loss_of_step(model, x, y, y_pred, None)
    model.reset_metrics()
    internals.note_loss(model, loss, 4)
    assert float(model.get_metrics_result()["loss"]) == pytest.approx(reported)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_compile_was_told_of_xla(jit_compile):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    model.jit_compile = False
    assert internals.is_compiled_with_xla(model) == jit_compile
