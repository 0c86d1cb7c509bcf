"""A learning rate that follows the global batch size. Run on 1 and 2 ranks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest

import hvd_dbs.keras as hvd
from hvd_dbs.learning_rate.ramp import Ramp
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    images,
    model,
    published_run,
    scripted,
    sgd,
    some_plans,
)

B = 16


def check_a_ramp_is_the_published_one_on_top_of_schedules():
    arrays = images(48)

    def halved(epoch, rate):
        assert rate == pytest.approx(0.05 * 0.5 ** max(epoch - 1, 0))  # Never the ramp's.
        return 0.05 * 0.5**epoch

    def train(epochs, *more):
        dataset = balancer.dataset(arrays, shuffle_seed=SEED)
        callbacks = [
            keras.callbacks.LearningRateScheduler(halved),
            hvd.callbacks.DynamicLearningRateCallback(balancer),
            *more,
        ]
        history = fit(
            net, balancer, dataset, epochs[-1] + 1, callbacks, initial_epoch=epochs[0]
        ).history
        return history["learning_rate_multiplier"]

    def begin(optimizer, global_batch_size, **options):
        one = hvd.Balancer(global_batch_size, scripted(some_plans(global_batch_size)))
        net = model()
        compile_model(net, hvd.DistributedOptimizer(optimizer, balancer=one), **options)
        return one, net

    def momentum():
        return keras.optimizers.SGD(0.05, momentum=0.9)

    # Six steps with k = 1, then 3 a pass: 8 of the 16 on the way to k = 2 in mid-training.
    batch_sizes = [8, 16, 16, 16]
    multipliers = [1.0] * 6 + [Ramp(1.0, 2.0).multiplier(i) for i in range(9)]
    expected = published_run(
        model(), arrays, batch_sizes, multipliers, [0.05 * 0.5**epoch for epoch in range(4)]
    )
    scaling = keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=1.0)
    for optimizer, options in ((momentum(), {}), (scaling, {"steps_per_execution": 2})):
        balancer, net = begin(optimizer, 8, **options)
        assert train([0]) == [1.0]
        balancer.resize(16)
        assert train([1, 2]) == [multipliers[8], multipliers[11]]
        assert balancer.plan.global_batch_size == 16
        state = json.loads(json.dumps(balancer.state_dict()))
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.keras")
            net.save(path)
            train([3])
            np.testing.assert_allclose(flat(net), expected, atol=1e-5)
            # A restart in mid-ramp.
            balancer = hvd.Balancer(16, scripted(some_plans(16)))
            balancer.load_state_dict(state)
            net = hvd.load_model(path, balancer=balancer)
        assert train([3]) == [multipliers[14]]
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_a_warm_up_goes_on_within_its_epoch():
    """Once, the epoch's rest began at its first step's rate, and never got to the full one."""
    for used, expected in ((0, [0.25, 0.5, 0.75, 1.0]), (2 * B, [0.75, 1.0])):
        balancer = hvd.Balancer(B, "even")
        dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
        balancer.load_state_dict({**balancer.state_dict(), "used": [[0, used]] if used else []})
        net, rates = model(), []
        compile_model(net, sgd(balancer))
        warm_up = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=1)
        look = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, net=net, rates=rates: rates.append(
                float(net.optimizer.learning_rate)
            )
        )
        fit(net, balancer, dataset, 1, [warm_up, look])
        first = 0.4 / hvd.size()
        assert rates == pytest.approx([first + (0.4 - first) * part for part in expected])


def check_a_ramp_outlasts_a_state_that_was_saved_without_one():
    balancer, saved = hvd.Balancer(8, "even"), hvd.Balancer(8, "even").state_dict()
    balancer.dynamic_learning_rate.start("sqrt", ramp_iterations=0)
    balancer.load_state_dict(saved)
    assert balancer.dynamic_learning_rate.state_dict()["rule"] == "sqrt"


def check_a_resize_that_cannot_be_is_an_error_on_all_ranks():
    balancer = hvd.Balancer(16, "even", max_batch_size=32)
    with pytest.raises(ValueError, match="allows at most"):
        balancer.resize(32 * hvd.size() + 1)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="global_batch_size differs between ranks"):
            balancer.resize(16 + hvd.rank())

    class InMidTraining(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with pytest.raises(ValueError, match="=8 needs 4 steps an epoch"):
                balancer.resize(8)

    assert balancer.global_batch_size == 16
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(32), shuffle_seed=SEED)
    fit(net, balancer, dataset, epochs=1, callbacks=[InMidTraining()])
    assert balancer.global_batch_size == 16
    balancer.resize(8)
    assert balancer.plan.global_batch_size == 8 == balancer.global_batch_size
    with pytest.raises(RuntimeError, match=r"or one with fewer steps than its global_batch_size=8"):
        fit(net, balancer, dataset, epochs=1)


def check_a_batch_that_grows_during_fit_is_the_published_one():
    # 50 is 7, 4 and 2 steps, the last of each partial; a resize in mid-epoch waits for its end.
    arrays, batch_sizes = images(50), [8, 16, 16, 32]

    class Grow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.epoch == 0 and batch == 2:
                balancer.resize(16)
                assert balancer.global_batch_size == 8

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                balancer.resize(32)
                assert balancer.global_batch_size == 32

    ramp = [Ramp(1.0, 2.0).multiplier(i) for i in range(8)]
    ramp += [Ramp(ramp[-1], 4.0).multiplier(i) for i in range(2)]
    expected = published_run(model(), arrays, batch_sizes, [1.0] * 7 + ramp, [0.05] * 4)
    epochal = scripted(some_plans(8))
    for strategy, repeated, steps_per_execution in (
        (epochal, False, 3),
        (epochal, True, 1),
        ("adaptive", False, 1),  # Rounds are under way where the size changes.
    ):
        balancer = hvd.Balancer(8, strategy)
        net = model()
        compile_model(net, sgd(balancer), steps_per_execution=steps_per_execution)
        dataset = balancer.dataset(arrays, shuffle_seed=SEED)
        rate = hvd.callbacks.DynamicLearningRateCallback(balancer)
        dataset, steps = (dataset.repeat(), 7) if repeated else (dataset, None)
        fit(net, balancer, dataset, 4, [rate, Grow()], steps_per_epoch=steps)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        assert balancer.plan.global_batch_size == 32


def check_a_dynamic_learning_rate_needs_the_balancers_optimizer():
    balancer = hvd.Balancer(16, "even")
    with pytest.raises(ValueError, match="Known: linear, sqrt"):
        hvd.callbacks.DynamicLearningRateCallback(balancer, rule="cubic")
    with pytest.raises(ValueError, match="ramp_iterations=-1 is negative"):
        hvd.callbacks.DynamicLearningRateCallback(balancer, ramp_iterations=-1)
    with pytest.raises(TypeError, match=r"ramp_iterations=2\.5 is a float"):
        hvd.callbacks.DynamicLearningRateCallback(balancer, ramp_iterations=2.5)
    callback = hvd.callbacks.DynamicLearningRateCallback(balancer)
    callback.set_model(model())
    compile_model(callback.model, sgd(None))
    with pytest.raises(ValueError, match="does not follow this balancer"):
        callback.on_train_begin()
