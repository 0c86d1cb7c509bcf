"""What does not belong together: an error on all ranks, never a wrong result. On 1 and 3 ranks."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs
import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow as hvd_tensorflow
from hvd_dbs.job import collective_devices
from hvd_dbs.job.collective_devices import CollectiveDevice
from hvd_dbs.keras.same_weights import difference_from_rank_0
from hvd_dbs.ops import native
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    hvd_collective,
    images,
    model,
    sgd,
)
from tests.mpi.together import on_last_rank

B = 16


def check_parts_that_do_not_belong_together_are_an_error():
    balancer, other = hvd.Balancer(B), hvd.Balancer(B)
    net = model()
    compile_model(net, sgd(on_last_rank(other, balancer)))
    with pytest.raises(ValueError, match="weighs gradients by this balancer"):
        fit(net, balancer, balancer.dataset(images(64), shuffle_seed=SEED))
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(64), shuffle_seed=SEED)
    with pytest.raises(ValueError, match=r"fit runs 2 steps an epoch .* has 4"):
        fit(net, balancer, dataset, steps_per_epoch=2)
    fresh = hvd.Balancer(B)
    net = model()
    compile_model(net, sgd(fresh))
    with pytest.raises(RuntimeError, match=r"has no data set .*training=False is for evaluation"):
        fit(net, fresh, fresh.dataset(images(64), training=False))


def check_other_versions_on_other_ranks_are_refused():
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((hvd_dbs, "__version__"), (native, "INTERFACE")):
            patch.setattr(module, name, on_last_rank("other", getattr(module, name)))
        if hvd.size() == 1:
            hvd.Balancer(B)
            return
        last = hvd.size() - 1
        with pytest.raises(RuntimeError) as caught:
            hvd.Balancer(B)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("hvd_dbs is not the same on all ranks: ")
    assert lines[1].startswith("The native library's interface is not the same on all ranks: ")
    assert all(line.endswith(f"; other on rank {last}.") for line in lines[:2])
    hvd.Balancer(B)  # The job can go on.


def check_ranks_with_and_without_a_gpu_of_nccl_are_refused():
    def own_device(host):
        return on_last_rank(CollectiveDevice(host, True, True, "0000:01:00.0"), original(host))

    original = collective_devices.own_device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective_devices, "own_device", own_device)
        if hvd.size() > 1:
            with pytest.raises(RuntimeError, match=f"run on GPUs on rank {hvd.size() - 1}, and on"):
                hvd.Balancer(B)
        else:
            hvd.Balancer(B)
    hvd.Balancer(B)  # The job can go on.


def check_what_ranks_would_wait_for_is_alike():
    """Once, ranks that train for different numbers of epochs deadlocked."""
    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B), shuffle_seed=SEED)
    shared = balancer.dataset(images(2 * B), training=False)
    ramp = hvd.callbacks.DynamicLearningRateCallback(balancer)
    on_validation = keras.callbacks.ReduceLROnPlateau("val_loss")
    cases = (
        ({"epochs": on_last_rank(2, 1)}, {}, r"epochs differs between ranks: 1 on .*; 2 on"),
        ({}, {"steps_per_execution": on_last_rank(2, 1)}, "steps_per_execution differs"),
        ({"callbacks": on_last_rank([ramp], [])}, {}, "callbacks.* differs"),
        ({"validation_data": on_last_rank(shared, None)}, {}, "validation_data differs"),
        # Once, ranks without a validation went on with another learning rate.
        (
            {"validation_data": on_last_rank(images(B), None), "callbacks": [on_validation]},
            {},
            "validation_data differs",
        ),
    )
    for of_fit, of_compile, text in cases:
        net = model()
        compile_model(net, sgd(balancer), **of_compile)
        with pytest.raises(ValueError, match=text) if hvd.size() > 1 else nullcontext():
            fit(net, balancer, dataset, **{"epochs": 1, **of_fit})


def check_averages_on_some_ranks_alone_are_an_error():
    """Once, a deadlock."""
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    follow = hvd.callbacks.DynamicBatchSizeCallback(balancer)
    callbacks = [*on_last_rank([], [hvd.callbacks.MetricAverageCallback()]), follow]
    error = pytest.raises(ValueError, match=r"callbacks.* differs")
    with error if hvd.size() > 1 else nullcontext():
        net.fit(balancer.dataset(images(2 * B)), callbacks=callbacks, verbose=0)


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
    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B + 1), shuffle_seed=SEED)
    for eager in (False, True):
        net = model()
        compile_model(net, sgd(balancer), run_eagerly=eager)
        fit(net, balancer, dataset, epochs=1)
        before = flat(net)
        with pytest.raises(tf.errors.InvalidArgumentError, match="does not know how many samples"):
            net.fit(dataset, verbose=0, shuffle=False)
        np.testing.assert_array_equal(flat(net), before)


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


def check_steps_that_go_on_behind_their_end_are_an_error():
    balancer = hvd.Balancer(B)
    net = model()
    compile_model(net, sgd(balancer))
    data = balancer.dataset(images(64))
    tf.config.experimental.set_synchronous_execution(False)
    try:
        with pytest.raises(ValueError, match="set_synchronous_execution"):
            fit(net, balancer, data, epochs=1)
    finally:
        tf.config.experimental.set_synchronous_execution(True)


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


def check_models_that_differ_between_ranks_are_an_error():
    """A forgotten broadcast, and an optimizer that is not distributed."""

    class TwoOptimizers(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            kernel, *others = self.trainable_variables
            gradients = tape.gradient(loss, [kernel, *others])
            plain.apply(gradients[:1], [kernel])
            self.optimizer.apply(gradients[1:], others)
            return {"loss": loss}

    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B), shuffle_seed=SEED)
    plain = keras.optimizers.SGD(0.1)
    bare = hvd.callbacks.DynamicBatchSizeCallback(balancer)
    seeds = on_last_rank(2, 1)
    cases = (
        (model(seed=seeds), "kernel is off by"),
        (TwoOptimizers(model().layers), r"conv2d\w*/kernel is off by"),
    )
    for net, text in cases:
        net.compile(sgd(balancer), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        expected = pytest.raises(ValueError, match=text) if hvd.size() > 1 else nullcontext()
        with expected:
            net.fit(dataset, verbose=0, shuffle=False, callbacks=[bare])
    weights = model().trainable_variables
    difference = difference_from_rank_0(hvd_collective(), on_last_rank(weights[1:], weights))
    assert (difference is None) == (hvd.size() == 1)


def check_what_moves_samples_behind_the_data_set_is_an_error():
    """Once, a shuffle gave the weight of a whole batch to the last, smaller one, silently."""
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
    wrong = on_last_rank(dataset.shuffle(4).prefetch(2), dataset)
    with pytest.raises(ValueError, match=r"has shuffle\(\.\.\.\) downstream of balancer") as caught:
        fit(net, balancer, wrong)
    if hvd.size() > 1:
        assert str(caught.value).startswith(f"rank {hvd.size() - 1}: ")
    other = tf.data.Dataset.range(2 * 4 * B).batch(2).shuffle(2)
    both = tf.data.Dataset.zip(dataset.map(lambda x, y: (x, y)), other)
    fit(net, balancer, both.map(lambda ours, _: ours).prefetch(1), epochs=1)


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


def check_an_elastic_job_aborts_before_gloo_does():
    balancer = hvd.Balancer(B)
    for seconds in ("20", 10.0):
        with pytest.raises(ValueError, match=f"abort_seconds={seconds!r}: .* not before the warn"):
            hvd.callbacks.ProgressWatchdogCallback(balancer, abort_seconds=seconds)
    callback = hvd.callbacks.ProgressWatchdogCallback(balancer, abort_seconds=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        patch.delenv("HOROVOD_GLOO_TIMEOUT_SECONDS", raising=False)
        with pytest.raises(ValueError, match=r"abort_seconds=30 .* not below Gloo's timeout"):
            callback.on_train_begin()


def check_what_is_no_balancer_is_refused_where_it_is_given():
    with tempfile.TemporaryDirectory() as folder:
        for taker, takes in [
            ("DynamicBatchSizeCallback", hvd.callbacks.DynamicBatchSizeCallback),
            ("DynamicLearningRateCallback", hvd.callbacks.DynamicLearningRateCallback),
            ("ProgressWatchdogCallback", hvd.callbacks.ProgressWatchdogCallback),
            ("TrainingStateCallback", lambda b: hvd.callbacks.TrainingStateCallback(folder, b)),
            ("MetricAverage", lambda b: hvd.callbacks.MetricAverageCallback(balancer=b)),
            (
                "optimizer",
                lambda b: hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer=b),
            ),
        ]:
            for given in (16, "x", hvd.Balancer):
                with pytest.raises(
                    TypeError, match=rf"{taker}\w* was given balancer={given!r}; exp"
                ):
                    takes(given)
    balancer = hvd.Balancer(B)
    with pytest.raises(TypeError, match="name is a Balancer"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer)
    with pytest.raises(TypeError, match="device is a Balancer"):
        hvd.callbacks.MetricAverageCallback(balancer)
    with pytest.raises(TypeError, match=r"takes no balancer\. Give it to the optimizer"):
        hvd_tensorflow.DistributedGradientTape(tf.GradientTape(), balancer=balancer)
    with pytest.raises(TypeError, match=r"Give inputs and labels as one source"):
        balancer.dataset(*images(40))
    with pytest.raises(TypeError, match="None in the place of an array"):
        balancer.dataset((*images(40), None))
    with pytest.raises(TypeError, match="training='no' must be"):
        balancer.dataset(images(40), training="no")
