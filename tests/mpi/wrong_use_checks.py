"""What does not belong together: an error on all ranks, never a wrong result. On 1 and 2 ranks."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from functools import partial

import keras
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


def check_a_balanced_optimizer_refuses_what_a_tape_has_averaged():
    """Once, ranks counted alike whatever their samples were: means of equal means are the same."""

    def step(wrap, change, net, optimizer, x):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(net(x))
        gradients = change(wrap(tape).gradient(value, net.trainable_variables))
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    def clipped(gradients):
        return tf.clip_by_global_norm(gradients, 1.0)[0]

    whole, part = (
        hvd_tensorflow.DistributedGradientTape,
        hvd_tensorflow.PartialDistributedGradientTape,
    )
    sparse = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Embedding(5, 2)])
    for run, wrap, change, net in (
        (lambda function: function, whole, list, model()),
        (lambda function: function, part, list, sparse),
        (tf.function, whole, clipped, model()),
        (tf.function, whole, list, sparse),
    ):
        balancer = hvd.Balancer(B, "even")
        train_step = partial(run(step), wrap, change, net, sgd(balancer))
        with pytest.raises(ValueError, match="averaged with equal weights"):
            for epoch in balancer.epochs(balancer.dataset(images(2 * B)), 1):
                for x, _ in epoch:
                    train_step(x)
        balancer.loop.end_training()


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
