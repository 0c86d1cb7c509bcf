"""A validation within `fit`, by all ranks or by each on its own data. Run on 3 ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    hvd_collective,
    images,
    model,
    one_process_run,
    scripted,
    sgd,
    some_plans,
)

B = 16


def check_validation_follows_the_plan_and_leaves_training_alone():
    arrays, held_out = images(70), images(41)
    sizes = []

    def note(x, y):
        def keep(labels):
            sizes.append(len(labels))
            return labels

        return x, tf.ensure_shape(tf.numpy_function(keep, [y], tf.int64), [None])

    for every in (None, 2):
        balancer = hvd.Balancer(B, scripted(some_plans(B)), every=every)
        net = model()
        compile_model(net, sgd(balancer))
        validation = balancer.dataset(held_out, training=False).map(note)
        dataset = balancer.dataset(arrays, shuffle_seed=SEED)
        history = fit(net, balancer, dataset, epochs=4, validation_data=validation).history
        expected, _ = one_process_run(model(), arrays, B, epochs=4)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        reference = model()
        compile_model(reference, keras.optimizers.SGD())
        reference.set_weights(net.get_weights())
        loss, accuracy = reference.evaluate(*held_out, verbose=0)
        np.testing.assert_allclose(history["val_loss"][-1], loss, rtol=1e-6)
        np.testing.assert_allclose(history["val_accuracy"][-1], accuracy, rtol=1e-6)
        assert len(history["loss"]) == len(history["val_loss"]) == 4
    most = hvd_collective().allgather(np.array([len(set(sizes))])).max()
    assert hvd.size() == 1 or most > 3  # The plans did change.


def check_a_validation_goes_on_where_the_global_batch_grows():
    class Grow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                balancer.resize(2 * B)

    held_out, balancer, net = images(5 * B + 3), hvd.Balancer(B, "even"), model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(4 * B))
    validation = balancer.dataset(held_out, training=False)
    history = fit(net, balancer, dataset, 3, [Grow()], validation_data=validation).history
    assert balancer.global_batch_size == 2 * B
    expected, _ = net.evaluate(*held_out, verbose=0)
    np.testing.assert_allclose(history["val_loss"][-1], expected, rtol=1e-5)
    balancer.resize(B // 2)
    with pytest.raises(tf.errors.OpError, match=r"batch size has changed to 8"):
        list(validation)


def check_data_of_a_validation_that_was_interrupted_can_be_read_again():
    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    balancer, net = hvd.Balancer(B, "even"), model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(4 * B))
    validation = balancer.dataset(images(4 * B), training=False)
    with pytest.raises(KeyboardInterrupt):
        fit(net, balancer, dataset, 1, [Stop()], validation_data=validation)
    mine = net.predict(validation.map(lambda x, y: x), verbose=0)
    assert hvd.allreduce(float(len(mine)), op=hvd.Sum) == 4 * B
    with pytest.raises(tf.errors.OpError, match="A second pass"):
        fit(net, balancer, dataset, 1, validation_data=validation.repeat(2))


def check_plain_validation_data_count_the_same_for_every_rank():
    x, y = images(40)
    mine = slice(None, 10) if hvd.rank() == 0 else slice(10, None)
    balancer = hvd.Balancer(B, hvd.strategies.static(some_plans(B)[0]))
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(64), shuffle_seed=SEED)
    local = (x[mine], y[mine])
    balancer.dataset((x, y), training=False)
    history = fit(net, balancer, dataset, epochs=1, validation_data=local).history
    reference = model()
    compile_model(reference, keras.optimizers.SGD())
    reference.set_weights(net.get_weights())
    losses = hvd_collective().allgather(np.array(reference.evaluate(*local, verbose=0)))
    np.testing.assert_allclose(history["val_loss"], [losses[:, 0].mean()], rtol=1e-6)


def check_validation_on_data_that_are_for_something_else_is_an_error():
    """Once, with data to train on, all ranks deadlocked: no next epoch opened."""
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    other = balancer.dataset(images(40)).map(lambda x, y: (x, y)).prefetch(1)
    dataset = balancer.dataset(images(64), shuffle_seed=SEED)
    strange = hvd.Balancer(B, "even").dataset(images(40), training=False)
    for validation, text in (
        (dataset, "that is there to train on"),
        (other, "that is there to train on"),
        (strange, "of another balancer"),
    ):
        with pytest.raises(ValueError, match=f"validation_data is .* {text}"):
            fit(net, balancer, dataset, validation_data=validation)
        balancer.loop.end_training()


def check_validation_that_nobody_adds_up_is_an_error():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    with pytest.raises(ValueError, match="MetricAverageCallback"):
        net.fit(
            balancer.dataset(images(64), shuffle_seed=SEED),
            validation_data=balancer.dataset(images(40), training=False),
            callbacks=[hvd.callbacks.DynamicBatchSizeCallback(balancer)],
            verbose=0,
            shuffle=False,
        )
    balancer.loop.end_training()
