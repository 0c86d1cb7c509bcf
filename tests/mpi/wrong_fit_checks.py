"""A `fit` that lacks something, or is given too much: an error on all ranks. On 1 and 2 ranks."""

from __future__ import annotations

from contextlib import nullcontext

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
    images,
    model,
    sgd,
)
from tests.mpi.together import on_last_rank

B = 16


def check_callbacks_on_some_ranks_alone_are_an_error():
    """Once, a deadlock."""
    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B))
    start, follow = (
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
    )
    for common, alone in (
        ([follow], hvd.callbacks.MetricAverageCallback()),
        ([follow], start),
        ([start], follow),
        ([follow], hvd.callbacks.DynamicLearningRateCallback(balancer)),
        ([follow], hvd.callbacks.ProgressWatchdogCallback(balancer)),
    ):
        net = model()
        compile_model(net, sgd(balancer))
        callbacks = [*on_last_rank([alone], []), *common]
        error = pytest.raises(ValueError, match=r"callbacks.* differs")
        with error if hvd.size() > 1 else nullcontext():
            net.fit(dataset, callbacks=callbacks, verbose=0)


def check_a_fit_has_the_balancer_in_all_places():
    """Once, a fit without balancer= and callback counted batches of all sizes the same."""
    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B), shuffle_seed=SEED)
    for eager in (False, True):
        net = model()
        for given, text in (
            (None, "gives all ranks the same weight"),
            (balancer, "does not follow the steps"),
        ):
            compile_model(net, sgd(given), run_eagerly=eager)
            with pytest.raises(ValueError, match=text):
                net.fit(dataset.map(lambda x, y: (x, y)), verbose=0, shuffle=False)
        compile_model(net, sgd(None), run_eagerly=eager)
        net.fit(*images(2 * B), batch_size=B, verbose=0)
        # Its step is traced, and looks at no data any more.
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        with pytest.raises(ValueError, match="gives all ranks the same weight"):
            net.fit(dataset, verbose=0, shuffle=False, callbacks=[start])


def check_a_rank_without_the_callback_fails_before_it_waits_for_others():
    """Its callback on rank 0 alone was a deadlock: one rank in MPI, the other in Horovod."""
    begun = []

    class Begins(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append(epoch)

    balancer = hvd.Balancer(B)
    net = model()
    compile_model(net, sgd(balancer))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Begins()]
    with pytest.raises(ValueError, match="does not follow the steps"):
        net.fit(balancer.dataset(images(64)), callbacks=callbacks, verbose=0)
    assert not begun


def check_a_later_fit_without_the_callback_is_an_error():
    """Once, its steps were weighted by the samples of the last step of the fit before."""

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("of the user")

    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B + 1), shuffle_seed=SEED)
    for eager in (False, True):
        net = model()
        compile_model(net, sgd(balancer), run_eagerly=eager)
        for callbacks in ([], [Fails()]):
            with pytest.raises(KeyError) if callbacks else nullcontext():
                fit(net, balancer, dataset, epochs=1, callbacks=callbacks)
            before = flat(net)
            for x, y in ((dataset, None), images(2 * B)):
                with pytest.raises(ValueError, match="does not follow the steps"):
                    net.fit(x, y, verbose=0, shuffle=False)
                np.testing.assert_array_equal(flat(net), before)
        fit(net, balancer, dataset, epochs=1)


def check_batches_of_another_size_than_a_model_takes_are_an_error():
    """Once, TensorFlow's own error of shapes, where a plan changed or in the last step."""

    def train(strategy, size, num_samples=2 * B, **bounds):
        balancer = hvd.Balancer(B, strategy, **bounds)
        x = keras.Input(batch_shape=(size, 2, 3))
        layer = keras.layers.Flatten() if bounds else keras.layers.GRU(2, stateful=True)
        net = keras.Model(x, keras.layers.Dense(1)(layer(x)))
        net.compile(sgd(balancer), "mse")
        data = np.ones((num_samples, 2, 3)), np.ones((num_samples, 1))
        return fit(net, balancer, balancer.dataset(data), epochs=1)

    local = B // hvd.size()
    for strategy, size, num_samples, text in (
        ("even", local + 1, 2 * B, f"the local batch of this rank has {local}"),
        ("even", local, 2 * B + 1, "has the 1 samples that are left"),
        *([("adaptive", local, 2 * B, "'adaptive' changes")] if hvd.size() > 1 else []),
    ):
        with pytest.raises(ValueError, match=text):
            train(strategy, size, num_samples)
    if B % hvd.size() == 0:
        train("even", local)
        train("adaptive", 1, micro_batch_size=1)


def check_data_that_the_balancer_does_not_train_on_are_an_error():
    """Once, a fit went on with them, weighted by the batches of the balancer's own data set."""
    balancer, other = hvd.Balancer(B, "even"), hvd.Balancer(B, "even")
    arrays = images(4 * B)
    net = model()
    compile_model(net, sgd(balancer))
    older = balancer.dataset(arrays)
    dataset = balancer.dataset(arrays)
    assert len(next(iter(dataset))) == 2  # Who looks into it does not train on it.
    others = other.dataset(arrays)
    plain = tf.data.Dataset.from_tensor_slices(arrays).batch(B)
    evaluation = balancer.dataset(arrays, training=False)
    for given in (plain, evaluation, older, others, on_last_rank(plain, dataset)):
        with pytest.raises(ValueError, match="does not read the data set") as caught:
            fit(net, balancer, given)
    if hvd.size() > 1:
        assert str(caught.value).startswith(f"rank {hvd.size() - 1}: ")
    fit(net, balancer, dataset.map(lambda x, y: (x, y)), epochs=1)


def check_a_data_set_to_train_on_is_not_made_within_fit():
    class Make(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            balancer.dataset(images(40), training=False)
            balancer.dataset(images(40))

    balancer, net = hvd.Balancer(B), model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(64))
    with pytest.raises(ValueError, match="within fit would replace the data set"):
        fit(net, balancer, dataset, callbacks=[Make()])
    balancer.dataset(images(40))  # After an interruption.


def check_callbacks_that_steer_act_on_averages_and_are_everywhere():
    """Once, ranks had different learning rates and weights, or one stopped and the others hung."""
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(2 * B))
    average = hvd.callbacks.MetricAverageCallback()
    stop = keras.callbacks.EarlyStopping("loss")
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss")
    for callbacks in ([stop], [stop, average], [plateau, average]):
        given = [*callbacks, hvd.callbacks.DynamicBatchSizeCallback(balancer)]
        if hvd.size() > 1:
            with pytest.raises(ValueError, match="would act on this rank's own value"):
                net.fit(dataset, callbacks=given, verbose=0)
    wrong = on_last_rank([average], [average, stop])
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="TerminateOnNaN would end the training of a rank"):
            fit(net, balancer, dataset, callbacks=[average, keras.callbacks.TerminateOnNaN()])
        with pytest.raises(ValueError, match=r"that steer.*EarlyStopping on .*; none on"):
            fit(net, balancer, dataset, callbacks=wrong)
    right = [average, stop, keras.callbacks.ReduceLROnPlateau("loss")]
    fit(net, balancer, dataset, epochs=1, callbacks=right)
    fit(net, balancer, dataset, epochs=1, callbacks=[plateau])  # Its values may be alike.


def check_a_fit_with_two_callbacks_of_a_kind_is_an_error():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(2 * B))
    callback = hvd.callbacks.DynamicBatchSizeCallback(balancer)
    for again in (callback, hvd.callbacks.DynamicBatchSizeCallback(balancer)):
        with pytest.raises(ValueError, match="DynamicBatchSizeCallback twice"):
            net.fit(dataset, callbacks=[callback, again], verbose=0)
    for _ in range(2):  # Of one fit, not of two.
        net.fit(dataset, callbacks=[callback], verbose=0)
