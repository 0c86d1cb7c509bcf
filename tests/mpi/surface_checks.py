"""Horovod's surface means what it means in Horovod, on Keras 3. Run on 2 ranks."""

from __future__ import annotations

import importlib
import inspect

import horovod.keras as stock_keras
import horovod.tensorflow as stock_tensorflow
import horovod.tensorflow.keras as stock
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow as hvd_tensorflow
from tests.mpi.problems import (
    compile_model,
    fit,
    flat,
    images,
    model,
    scripted,
    sgd,
    some_plans,
)

RATE = 0.1

MODULES = {
    "horovod.tensorflow": "hvd_dbs.tensorflow",
    "horovod.tensorflow.elastic": "hvd_dbs.tensorflow.elastic",
    "horovod.tensorflow.keras": "hvd_dbs.keras",
    "horovod.tensorflow.keras.callbacks": "hvd_dbs.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "hvd_dbs.keras.elastic",
    "horovod.keras": "hvd_dbs.keras",
}

NOT_MEANT_FOR_USERS = {"is_version_greater_equal_than", "run_fn"}


def check_every_public_name_of_horovod_is_here():
    for theirs, ours in MODULES.items():
        module = importlib.import_module(theirs)
        names = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not inspect.ismodule(value)
        }
        missing = names - NOT_MEANT_FOR_USERS - set(dir(importlib.import_module(ours)))
        assert not missing, f"{ours}: {missing}"


def check_arguments_have_horovods_places_and_defaults():
    pairs = [
        (stock.DistributedOptimizer, hvd.DistributedOptimizer),
        (stock_keras.PartialDistributedOptimizer, hvd.PartialDistributedOptimizer),
        (stock.load_model, hvd.load_model),
        (stock_tensorflow.broadcast_variables, hvd_tensorflow.broadcast_variables),
        (
            stock_tensorflow.PartialDistributedGradientTape,
            hvd_tensorflow.PartialDistributedGradientTape,
        ),
        *((getattr(stock, n), getattr(hvd, n)) for n in ("allreduce", "allgather", "broadcast")),
        *(
            (getattr(stock.callbacks, name), getattr(hvd.callbacks, name))
            for name in dir(stock.callbacks)
            if name.endswith(("Callback", "Checkpoint"))
        ),
    ]
    for theirs, ours in pairs:
        expected = list(inspect.signature(theirs).parameters.values())
        given = list(inspect.signature(ours).parameters.values())
        for one, other in zip(expected, given, strict=False):
            assert (one.name, one.default) == (other.name, other.default), ours
        assert len(given) >= len(expected), ours


def _rows(rank):
    x, y = images(8 * hvd.size())
    return x[8 * rank : 8 * rank + 8], y[8 * rank : 8 * rank + 8]


def _gradients_of_all_ranks(net):
    """Of the loss of each rank's own rows, by rank and variable."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    gradients = []
    for rank in range(hvd.size()):
        x, y = _rows(rank)
        with tf.GradientTape() as tape:
            value = loss(y, net(x)) + sum(net.losses)
        sources = [weight.value for weight in net.trainable_weights]
        gradients.append([gradient.numpy() for gradient in tape.gradient(value, sources)])
    return gradients


def _after_steps(optimizer, num_steps=1):
    """How far this rank's weights go, by variable, in steps on its own rows."""
    net = model()
    expected = _gradients_of_all_ranks(net)
    before = net.get_weights()
    net.compile(optimizer(net), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = _rows(hvd.rank())
    for _ in range(num_steps):
        net.train_on_batch(x, y)
    moved = [(old - new) / RATE for old, new in zip(before, net.get_weights(), strict=True)]
    return moved, expected


def _assert_close(moved, expected):
    for one, other in zip(moved, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def check_options_of_an_optimizer():
    cases = (  # Options, steps, what the gradients of ranks are summed up with.
        ({"backward_passes_per_step": 1, "average_aggregated_gradients": True}, 1, 1 / hvd.size()),
        ({"gradient_predivide_factor": 2.0, "groups": 2, "device_dense": "/cpu:0"}, 1, 0.5),
        ({"num_groups": 3, "device_sparse": "/cpu:0", "scale_local_gradients": False}, 1, 0.5),
        ({"op": hvd.Sum}, 1, 1.0),
        ({"backward_passes_per_step": 2}, 1, 0.0),
        ({"backward_passes_per_step": 2}, 2, 1.0),
        ({"backward_passes_per_step": 2, "average_aggregated_gradients": True}, 2, 0.5),
        ({"op": hvd.Sum, "backward_passes_per_step": 2}, 2, 2.0),
    )
    for options, num_steps, factor in cases:
        moved, gradients = _after_steps(
            lambda _, options=options: hvd.DistributedOptimizer(
                keras.optimizers.SGD(RATE), **options
            ),
            num_steps,
        )
        expected = [factor * sum(of_ranks) for of_ranks in zip(*gradients, strict=True)]
        _assert_close(moved, expected)
    # By position, as `DistributedOptimizer(optimizer, None, "", "", compression)` of old scripts.
    distributed = hvd.DistributedOptimizer(
        keras.optimizers.SGD(RATE), None, "", "", hvd.Compression.fp16, True
    )
    assert distributed.variables() == distributed.variables


def check_passes_with_sparse_gradients_and_a_balancer():
    def run(optimizer):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(9, 3), keras.layers.GlobalAveragePooling1D()]
        net = keras.Sequential([keras.layers.Input((4,), dtype="int32"), *layers])
        net.compile(optimizer, "mse")
        words = np.random.default_rng(0).integers(0, 9, (16, 4))
        for _ in range(2):
            net.train_on_batch(words, np.ones((16, 3)))
        return flat(net)

    # All ranks have the same rows here: the mean over ranks is what one process has.
    expected = run(keras.optimizers.SGD(2 * RATE, gradient_accumulation_steps=2))
    plain = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), backward_passes_per_step=2)
    np.testing.assert_allclose(run(plain), expected, atol=1e-6)

    weights = []
    for rate, options, passes in (
        (RATE, {}, {"backward_passes_per_step": 3}),
        (3 * RATE, {"gradient_accumulation_steps": 3}, {}),
    ):
        balancer = hvd.Balancer(8, scripted(some_plans(8)))
        net = model()
        sgd_of_passes = keras.optimizers.SGD(rate, **options)
        compile_model(net, hvd.DistributedOptimizer(sgd_of_passes, balancer=balancer, **passes))
        fit(net, balancer, balancer.dataset(images(24), shuffle_seed=1), epochs=1)
        weights.append(flat(net))
    np.testing.assert_allclose(*weights, atol=1e-6)


def check_options_that_cannot_be_honoured_name_the_way_out():
    balancer = hvd.Balancer(8, "even")
    accumulating = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    cases = (
        ({"op": hvd.Adasum}, "Use op=hvd.Average"),
        ({"op": hvd.Sum, "balancer": balancer}, "Use op=hvd.Average"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "Leave it out"),
        ({"gradient_predivide_factor": 0.0}, "positive number"),
        ({"groups": -1}, "leave it out"),
        ({"backward_passes_per_step": 0}, "1 or more"),
        ({"backward_passes_per_step": 2, "optimizer": accumulating}, "Leave out one of the two"),
    )
    for options, text in cases:
        given = {"optimizer": keras.optimizers.SGD(RATE), **options}
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(**given)
    with pytest.raises(TypeError, match="balancer=balancer"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), balancer)
    with pytest.raises(TypeError, match="compression='fp16' is none of Horovod's"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), compression="fp16")
    with pytest.raises(ValueError, match="Leave out balancer="):
        sgd(balancer).register_local_var(tf.Variable(1.0))
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        hvd.DistributedOptimizer(scaling).register_local_var(tf.Variable(1.0))
    with pytest.raises(ValueError, match="not built"):
        hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(RATE), local_layers=keras.layers.Dense(1)
        )
    with pytest.raises(TypeError, match=r"hvd_dbs\.keras\.DistributedOptimizer"):
        hvd_tensorflow.DistributedOptimizer(keras.optimizers.SGD(RATE))
    for function in (hvd.broadcast_global_variables, hvd_tensorflow.broadcast_global_variables):
        for called in (function, tf.function(function)):
            with pytest.raises(RuntimeError, match=r"Use hvd\.broadcast_variables"):
                called(0)
    with pytest.raises(TypeError, match="needs the variables"):
        hvd_tensorflow.elastic.TensorFlowState(step=1)
    with pytest.raises(TypeError, match="Use one of hvd_dbs"):
        hvd.elastic.run(lambda state: None)(object())


def check_gradients_of_local_layers_stay_a_ranks_own():
    for scales in (True, False):
        factor = 1 / hvd.size() if scales else 1.0
        moved, gradients = _after_steps(
            lambda net, scales=scales: hvd.PartialDistributedOptimizer(
                keras.optimizers.SGD(RATE),
                local_layers=net.layers[0],
                scale_local_gradients=scales,
            )
        )
        mine = gradients[hvd.rank()]
        means = [sum(of_ranks) / hvd.size() for of_ranks in zip(*gradients, strict=True)]
        _assert_close(moved[:2], [factor * gradient for gradient in mine[:2]])
        _assert_close(moved[2:], means[2:])

        net = model()
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(net(_rows(hvd.rank())[0])) * (hvd.rank() + 1.0)
        with_local = hvd_tensorflow.PartialDistributedGradientTape(
            tape, local_layers=[net.layers[0]], scale_local_gradients=scales
        )
        local, shared = with_local.get_local_and_global_gradients(value, net.trainable_weights)
        assert [source for source, _ in [*local, *shared]] == net.trainable_weights
        theirs = hvd.allgather(tf.reshape(local[0][1], [1, -1])).numpy()
        assert (np.abs(theirs[0] - theirs[-1]).max() > 1e-3) == (hvd.size() > 1)
        theirs = hvd.allgather(tf.reshape(shared[0][1], [1, -1])).numpy()
        np.testing.assert_array_equal(theirs[0], theirs[-1])


def check_operations_in_a_function():
    @tf.function
    def all_of(value):
        return (
            hvd.allreduce(value, op=hvd.Sum),
            hvd.allgather(value),
            hvd.broadcast(value, 0),
            hvd.reducescatter(value),
        )

    value = tf.fill([2 * hvd.size()], float(hvd.rank()))
    total, gathered, first, part = all_of(value)
    assert total.numpy()[0] == sum(range(hvd.size()))
    assert gathered.shape == (2 * hvd.size() ** 2,)
    assert first.numpy()[0] == 0
    np.testing.assert_array_equal(part, np.full(2, (hvd.size() - 1) / 2))


def check_ranks_outside_of_a_process_set_apply_their_own_gradients():
    first = hvd.add_process_set([0])
    try:
        moved, gradients = _after_steps(
            lambda _: hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), process_set=first)
        )
        _assert_close(moved, gradients[hvd.rank()])
    finally:
        hvd.remove_process_set(first)
