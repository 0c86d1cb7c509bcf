"""An evaluation by all ranks says what one process says about all samples. Run on 1, 2, 3 ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    SEED,
    OneProcess,
    compile_model,
    fit,
    hvd_collective,
    images,
    model,
    scripted,
    sgd,
    some_plans,
)
from tests.mpi.together import captured

B = 16


class LargestLabel(keras.metrics.Metric):
    """Averages over ranks, and takes rank 0's: not everything is a sum."""

    def __init__(self):
        super().__init__(name="largest")
        self.mean_of_ranks = self.add_variable((), "zeros", aggregation="mean", name="mean")
        self.of_rank_0 = self.add_variable((), "zeros", aggregation="only_first_replica", name="r0")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.mean_of_ranks.assign(3.0)
        self.of_rank_0.assign(1.0 + hvd.rank())

    def result(self):
        return {"mean_of_ranks": self.mean_of_ranks.value, "of_rank_0": self.of_rank_0.value}


def binary(arrays):
    x, y = arrays
    return x, (y[:, None] % 2).astype(np.float32)


def binary_model(more=(), **options):
    """A classifier whose metrics are confusion matrices and histograms, not only means."""
    keras.utils.set_random_seed(2)
    net = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid", kernel_regularizer="l2"),
        ]
    )
    metrics = [
        "accuracy",
        keras.metrics.AUC(name="auc"),
        keras.metrics.F1Score(threshold=0.5, name="f1"),
        keras.metrics.TruePositives(thresholds=0.0, name="positives"),
        keras.metrics.FalsePositives(thresholds=0.0, name="negatives"),
        *more,
    ]
    net.compile(loss="binary_crossentropy", metrics=metrics, **options)
    return net


def check_evaluate_equals_one_process():
    plain, nets = binary_model(), [binary_model(steps_per_execution=steps) for steps in (1, 3)]
    for num_samples in (1, 2, B, 37, 5 * B + 1):
        arrays = binary(images(num_samples))
        expected = plain.evaluate(*arrays, batch_size=B, verbose=0, return_dict=True)
        for net, plan in zip(nets, (some_plans(B)[0], [1] * hvd.size()), strict=True):
            balancer = hvd.Balancer(B, hvd.strategies.static(plan))
            dataset = balancer.dataset(arrays, training=False)
            average = hvd.callbacks.MetricAverageCallback(balancer=balancer)
            logs = net.evaluate(dataset, verbose=0, return_dict=True, callbacks=[average])
            assert logs.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(logs[name], value, rtol=1e-6, err_msg=name)


class TracksItsLoss(keras.Model):
    """Averages the losses of batches, as Keras's guides do."""

    def __init__(self, net):
        super().__init__()
        self.net, self.tracker = net, keras.metrics.Mean(name="loss")

    metrics = property(lambda self: [self.tracker])

    def test_step(self, data):
        x, y = data
        self.tracker.update_state(tf.reduce_mean((self.net(x) - y["one"]) ** 2))
        return {"loss": self.tracker.result()}


def two_outputs():
    """A model whose losses of each output count batches, and samples that differ between ranks."""
    keras.utils.set_random_seed(2)
    image = keras.layers.Input((64,))
    heads = {name: keras.layers.Dense(1, name=name)(image) for name in ("one", "other")}
    x = np.sort(images(4 * B)[0].reshape(4 * B, 64), axis=0)
    return keras.Model(image, heads), (x, {"one": 2 * x[:, :1], "other": x[:, 1:2]})


def check_means_over_batches_weigh_ranks_by_samples():
    """Once each rank counted the same: 2.57 on plan (7, 1), where one process says 1.40."""
    net, arrays = two_outputs()
    net.compile(loss={"one": "mse", "other": "mae"})
    tracking = TracksItsLoss(keras.Sequential([net.layers[0], net.get_layer("one")]))
    tracking.compile()
    plan = some_plans(B)[0]
    balancer = hvd.Balancer(B, hvd.strategies.static(plan))
    average = hvd.callbacks.MetricAverageCallback(balancer=balancer)
    options = {"verbose": 0, "return_dict": True}
    for one in (net, tracking):
        expected = one.evaluate(tf.data.Dataset.from_tensor_slices(arrays).batch(B), **options)
        dataset = balancer.dataset(arrays, training=False)
        logs = one.evaluate(dataset, callbacks=[average], **options)
        assert logs.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(logs[name], value, rtol=1e-6, err_msg=name)


class ReturnsMore(TracksItsLoss):
    """Returns a number that no metric of the model has counted."""

    def test_step(self, data):
        return {**super().test_step(data), "of_step": tf.reduce_sum(data[0])}


def check_results_that_are_of_no_metric_are_warned_of():
    """Once, evaluate returned those of a rank's own samples without a word."""
    net, arrays = two_outputs()
    balancer = hvd.Balancer(B, hvd.strategies.static(some_plans(B)[0]))
    average = hvd.callbacks.MetricAverageCallback(balancer=balancer)
    for kind, words in (
        (ReturnsMore, "returns loss, of_step, and its metrics are loss"),
        (TracksItsLoss, None),
    ):
        one = kind(keras.Sequential([net.layers[0], net.get_layer("one")]))
        one.compile()
        with captured("hvd_dbs.keras.callbacks.metric_average") as records:
            for _ in range(2):
                dataset = balancer.dataset(arrays, training=False)
                one.evaluate(dataset, verbose=0, callbacks=[average])
        lines = [record.getMessage() for record in records]
        is_warned = words is not None and hvd.rank() == 0 and hvd.size() > 1
        assert len(lines) == is_warned and all(words in line for line in lines)


class LastValue(keras.metrics.Metric):
    """Keeps what it saw last, and has not told Keras so: the sum over ranks would be wrong."""

    def __init__(self):
        super().__init__(name="last")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(3.0)

    def result(self):
        return tf.identity(self.value.value)


def check_training_metrics_equal_one_process():
    """Once AUC and F1 were averages over ranks, and depended on the plan."""
    for num_samples, steps, validates in ((65, 1, False), (70, 3, True)):
        arrays = binary(images(num_samples))
        plain, batches = binary_model(optimizer=keras.optimizers.SGD(0.05)), OneProcess(arrays, B)
        expected = []
        for batches.epoch in range(2):
            expected.append(plain.fit(batches, shuffle=False, verbose=0).history)
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), balancer=balancer)
        net = binary_model(optimizer=optimizer, steps_per_execution=steps, more=[LastValue()])
        held_out = balancer.dataset(binary(images(41)), training=False) if validates else None
        dataset = balancer.dataset(arrays, shuffle_seed=SEED)
        history = fit(net, balancer, dataset, epochs=2, validation_data=held_out).history
        np.testing.assert_array_equal(history["last"], [3.0, 3.0])
        for epoch, logs in enumerate(expected):
            for name, values in logs.items():
                given = history[name][epoch]
                np.testing.assert_allclose(given, values[0], rtol=1e-6, err_msg=name)


def check_every_sample_is_evaluated_once_and_no_more_than_the_plan_at_a_time():
    for num_samples in (1, 37, 5 * B + 1):
        balancer = hvd.Balancer(B, hvd.strategies.static(some_plans(B)[0]))
        dataset = balancer.dataset(np.arange(num_samples), training=False)
        batches = [batch.numpy() for batch in dataset]
        assert len(batches) == len(dataset) <= -(-num_samples // B)
        assert max(map(len, batches)) <= balancer.plan.batch_sizes[hvd.rank()]
        row = np.full(num_samples, -1)
        mine = np.concatenate(batches)
        row[: len(mine)] = mine
        rows = hvd_collective().allgather(row)
        read = rows[rows >= 0].tolist()
        # With less samples than ranks some read one that does not count for them.
        assert sorted(read if num_samples > 1 else set(read)) == list(range(num_samples))


def check_metrics_that_are_no_sums():
    balancer = hvd.Balancer(B, "even")
    net = model()
    net.compile(loss=keras.losses.SparseCategoricalCrossentropy(True), metrics=[LargestLabel()])
    logs = net.evaluate(
        balancer.dataset(images(40), training=False),
        verbose=0,
        return_dict=True,
        callbacks=[hvd.callbacks.MetricAverageCallback(balancer=balancer)],
    )
    assert logs["mean_of_ranks"] == 3.0
    assert logs["of_rank_0"] == 1.0


def check_an_evaluation_that_is_not_of_all_samples_is_an_error():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(70), training=False)
    callbacks = [hvd.callbacks.MetricAverageCallback()]
    with pytest.raises(ValueError, match="ended after 2 of the 5 steps"):
        net.evaluate(dataset, steps=2, verbose=0, callbacks=callbacks)
    with pytest.raises((ValueError, tf.errors.OpError), match=r"continues after|second pass"):
        net.evaluate(dataset.repeat(), steps=11, verbose=0, callbacks=callbacks)
    net.evaluate(dataset, verbose=0, callbacks=callbacks)
    with pytest.raises(ValueError, match="an evaluation has no order"):
        balancer.dataset(images(70), shuffle_seed=1, training=False)


def check_predictions_of_all_ranks_are_gathered_in_the_order_of_the_samples():
    """As docs/evaluation.md shows it."""
    x, _ = images(41)
    net = model()
    balancer = hvd.Balancer(B, hvd.strategies.static(some_plans(B)[0]))
    mine = net.predict(balancer.dataset(x, training=False), verbose=0)
    assert hvd.size() == 1 or len(mine) < len(x)
    everything = hvd.allgather(mine)
    np.testing.assert_allclose(everything, net.predict(x, verbose=0), rtol=1e-5)


def check_metrics_of_no_samples_count_the_same_for_every_rank():
    average = hvd.callbacks.MetricAverageCallback()
    net = model()
    compile_model(net, sgd(hvd.Balancer(B, "even")))
    average.set_model(net)
    average.on_train_begin()
    logs = {"loss": float(hvd.rank())}
    average.on_epoch_end(0, logs)
    assert logs["loss"] == (hvd.size() - 1) / 2
