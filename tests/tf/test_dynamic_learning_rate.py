"""The learning-rate factor in the graph, and what optimizers make of it."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.keras.ramped_learning_rate import RampedLearningRate
from hvd_dbs.learning_rate.dynamic import DynamicLearningRate
from hvd_dbs.learning_rate.ramp import Ramp
from tests.mpi.problems import SEED, compile_model, fit, flat, images, model, published_run, sgd

MOMENTUM, RATE = 0.9, 0.1


def ramped(optimizer, dynamic):
    """The optimizer with the factor, as DistributedOptimizer makes it."""
    optimizer.__class__ = type("Ramped", (RampedLearningRate, type(optimizer)), {})
    object.__setattr__(optimizer, "_hvd_dbs_factor", dynamic.factor)
    return optimizer


def gradients(num_steps, seed=0):
    return np.random.default_rng(seed).normal(size=(num_steps, 3)).astype(np.float32)


class Training:
    """A vector of weights that is updated by given gradients, in one graph."""

    def __init__(self, optimizer, steps_per_call=1):
        self.weights = keras.Variable(np.ones(3, np.float32))
        self.optimizer = optimizer
        optimizer.build([self.weights])
        self.num_traces = 0

        @tf.function
        def update(all_gradients):
            self.num_traces += 1
            for gradient in tf.unstack(all_gradients, num=steps_per_call):
                optimizer.apply([gradient], [self.weights])

        self._update, self._steps_per_call = update, steps_per_call

    def run(self, all_gradients):
        for part in np.split(all_gradients, len(all_gradients) // self._steps_per_call):
            self._update(part)
        assert self.num_traces == 1
        return self.weights.numpy()


def published(all_gradients, multipliers, *, nesterov=False, rates=None):
    """v = mu v + g; w = w - rate * c * v."""
    w, v = np.ones(3), np.zeros(3)
    rates = RATE * np.ones(len(all_gradients)) if rates is None else rates
    for g, c, rate in zip(all_gradients, multipliers, rates, strict=True):
        v = MOMENTUM * v + g
        w = w - rate * c * (g + MOMENTUM * v if nesterov else v)
    return w


@pytest.mark.parametrize("k", [1 / 4, 1 / 2, 2, 4, 16])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_momentum_is_that_of_the_paper(k, nesterov, steps_per_call):
    before, after = 8, 160
    dynamic = DynamicLearningRate(64)
    dynamic.start(ramps_down=True)
    sgd = keras.optimizers.SGD(RATE, momentum=MOMENTUM, nesterov=nesterov)
    training = Training(ramped(sgd, dynamic), steps_per_call)
    all_gradients = gradients(before + after)
    training.run(all_gradients[:before])
    dynamic.follow(int(64 * k))
    result = training.run(all_gradients[before:])
    ramp = Ramp(1.0, k)
    multipliers = [1.0] * before + [ramp.multiplier(i) for i in range(after)]
    expected = published(all_gradients, multipliers, nesterov=nesterov)
    np.testing.assert_allclose(result, expected, rtol=2e-5)
    assert dynamic.multiplier == k
    assert float(sgd.learning_rate) == pytest.approx(RATE)


def test_scaled_at_once():
    dynamic = DynamicLearningRate(64)
    dynamic.start(ramp_iterations=0)
    training = Training(ramped(keras.optimizers.SGD(RATE, momentum=MOMENTUM), dynamic))
    all_gradients = gradients(20)
    training.run(all_gradients[:10])
    dynamic.follow(256)
    result = training.run(all_gradients[10:])
    np.testing.assert_allclose(result, published(all_gradients, [1.0] * 10 + [4.0] * 10), rtol=2e-5)


def test_a_change_during_a_ramp_starts_from_the_multiplier_reached():
    dynamic = DynamicLearningRate(64)
    dynamic.start()
    training = Training(ramped(keras.optimizers.SGD(RATE, momentum=MOMENTUM), dynamic))
    all_gradients = gradients(60)
    dynamic.follow(256)
    training.run(all_gradients[:10])
    reached = Ramp(1.0, 4.0).multiplier(9)
    assert dynamic.multiplier == reached
    dynamic.follow(128)
    result = training.run(all_gradients[10:])
    first = [Ramp(1.0, 4.0).multiplier(i) for i in range(10)]
    second = [Ramp(reached, 2.0).multiplier(i) for i in range(50)]
    assert second[0] == first[-1]
    assert second[-1] == 2.0
    np.testing.assert_allclose(result, published(all_gradients, first + second), rtol=2e-5)


def test_restart_in_mid_ramp():
    def begin():
        dynamic = DynamicLearningRate(64)
        sgd = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        return dynamic, Training(ramped(sgd, dynamic))

    all_gradients = gradients(60)
    dynamic, training = begin()
    dynamic.start("sqrt")
    training.run(all_gradients[:5])
    dynamic.follow(256)
    training.run(all_gradients[5:12])
    state = json.loads(json.dumps(dynamic.state_dict()))
    saved = [variable.numpy() for variable in training.optimizer.variables]
    weights = training.weights.numpy()
    expected = training.run(all_gradients[12:])

    dynamic, training = begin()
    dynamic.follow(256)
    dynamic.load_state_dict(state)
    dynamic.start("sqrt")  # The callback of the new fit.
    training.weights.assign(weights)
    for variable, value in zip(training.optimizer.variables, saved, strict=True):
        variable.assign(value)
    np.testing.assert_array_equal(training.run(all_gradients[12:]), expected)
    assert dynamic.multiplier == 2.0


def test_a_restart_with_another_batch_size_ramps_from_the_multiplier_reached():
    dynamic = DynamicLearningRate(64)
    dynamic.start()
    dynamic.follow(128)
    dynamic.factor.advance(9)
    restarted = DynamicLearningRate(256)
    restarted.load_state_dict(dynamic.state_dict())
    state = restarted.state_dict()
    assert (state["ramp"]["start"], state["ramp"]["target"]) == (dynamic.multiplier, 4.0)
    assert state["num_iterations"] == 0


def test_a_damaged_state_changes_nothing():
    dynamic = DynamicLearningRate(64)
    dynamic.start()
    dynamic.follow(128)
    state = dynamic.state_dict()
    for damaged in ({}, {**state, "rule": 3}, {**state, "ramp": None}, {**state, "more": 1}):
        with pytest.raises(ValueError, match=r"ramp|rule"):
            dynamic.load_state_dict(damaged)
        assert dynamic.state_dict() == state


def test_adam_and_weight_decay_see_the_multiplied_rate():
    for make in (
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.RMSprop(0.01),
        lambda: keras.optimizers.SGD(0.01),
    ):
        dynamic = DynamicLearningRate(1)
        dynamic.start(ramp_iterations=0)
        dynamic.follow(4)
        result = Training(ramped(make(), dynamic)).run(gradients(10))
        plain = make()
        plain.learning_rate = 0.04
        np.testing.assert_allclose(result, Training(plain).run(gradients(10)), rtol=1e-5)


def test_rmsprop_keeps_its_momentum_in_step():
    def run(dynamic, rates):
        rmsprop = keras.optimizers.RMSprop(RATE, momentum=MOMENTUM)
        training = Training(ramped(rmsprop, dynamic))
        result = training.run(gradients(10))
        if rates is None:
            dynamic.follow(4)
        else:  # By hand, what a change of the rate is with v left alone.
            rmsprop.learning_rate = rates
            for buffer in rmsprop._momentums:
                buffer.assign(buffer * 4.0)
        result = training.run(gradients(10, seed=1))
        return result

    dynamic = DynamicLearningRate(1)
    dynamic.start(ramp_iterations=0)
    np.testing.assert_allclose(run(dynamic, None), run(DynamicLearningRate(1), 4 * RATE), rtol=1e-5)


def test_accumulated_gradients_count_updates():
    dynamic = DynamicLearningRate(64)
    dynamic.start()
    sgd = keras.optimizers.SGD(RATE, momentum=MOMENTUM, gradient_accumulation_steps=2)
    training = Training(ramped(sgd, dynamic))
    all_gradients = gradients(80)
    dynamic.follow(128)
    result = training.run(all_gradients)
    ramp = Ramp(1.0, 2.0)
    means = all_gradients.reshape(40, 2, 3).mean(axis=1)
    expected = published(means, [ramp.multiplier(i) for i in range(40)])
    np.testing.assert_allclose(result, expected, rtol=2e-5)


def test_a_schedule_object_and_an_assigned_rate_are_multiplied():
    dynamic = DynamicLearningRate(64)
    dynamic.start()
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([9, 19], [0.1, 0.05, 0.01])
    training = Training(ramped(keras.optimizers.SGD(schedule), dynamic))
    dynamic.follow(128)
    result = training.run(gradients(30))
    multipliers = np.array([Ramp(1.0, 2.0).multiplier(i) for i in range(30)])
    rates = np.repeat([0.1, 0.05, 0.01], 10)
    expected = 1 - np.sum((rates * multipliers)[:, None] * gradients(30), axis=0)
    np.testing.assert_allclose(result, expected, rtol=2e-5)
    assert float(training.optimizer.learning_rate) == pytest.approx(0.01)


def test_keras_own_callbacks_set_the_rate_below_the_ramp():
    """Each in a fit whose batch grows after its first epoch: 6 steps, then 3 an epoch."""
    rates = [0.05, 0.05, 0.025, 0.0125]
    multipliers = [1.0] * 6 + [Ramp(1.0, 2.0).multiplier(i) for i in range(9)]
    hvd.init()
    expected = published_run(model(), images(48), [8, 16, 16, 16], multipliers, rates)
    setters = (
        # Nothing is ever so much better than the first epoch.
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.5 if epoch > 1 else 1)),
    )
    for setter in setters:
        balancer = hvd.Balancer(8, "even")

        class Grow(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None, balancer=balancer):
                if epoch == 0:
                    balancer.resize(16)

        net = model()
        compile_model(net, sgd(balancer))
        dynamic = hvd.callbacks.DynamicLearningRateCallback(balancer)
        dataset = balancer.dataset(images(48), shuffle_seed=SEED)
        logs = fit(net, balancer, dataset, 4, [dynamic, Grow(), setter]).history
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        ends = [multipliers[5], *multipliers[8::3]]
        assert logs["learning_rate_multiplier"] == ends
        np.testing.assert_allclose(logs["learning_rate"], rates)
