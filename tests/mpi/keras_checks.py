"""Horovod's Keras interface on Keras 3. Run on 1 and 2 ranks."""

from __future__ import annotations

import json
import logging
import socket
import tempfile
import time
from pathlib import Path

import horovod.tensorflow.keras as stock
import keras
import numpy as np
import pytest

import hvd_dbs.keras as hvd
from hvd_dbs.comm.agreement import allgather_text
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

NOT_OURS = {"K", "inspect", "is_version_greater_equal_than", "keras", "tf", "version", "warnings"}


def check_every_public_name_of_horovod_is_here():
    names = {name for name in dir(stock) if not name.startswith("_")} - NOT_OURS
    assert names <= set(dir(hvd))
    names = {name for name in dir(stock.callbacks) if name.endswith(("Callback", "Checkpoint"))}
    assert names <= set(dir(hvd.callbacks))


def check_operations_on_values():
    ones, size = np.ones(3), hvd.size()
    np.testing.assert_allclose(hvd.allreduce(ones * hvd.rank()), (size - 1) / 2)
    assert hvd.allgather(ones).shape == (3 * size,)
    np.testing.assert_allclose(hvd.broadcast(ones * hvd.rank(), 0), 0)


def check_warm_up_reaches_the_learning_rate_in_the_last_step():
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
    logs = fit(net, balancer, dataset, epochs=3, callbacks=[warm_up, Watch()]).history
    size = hvd.size()
    expected = [0.4 / size * ((i + 1) / 4 * (size - 1) / 2 + 1) for i in range(8)] + [0.4] * 4
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    np.testing.assert_allclose(logs["lr"][-1], 0.4, rtol=1e-6)


def check_a_schedule_corrects_the_momentum():
    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.before = self.model.optimizer.momentums[0].numpy()

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0 and hasattr(self, "before"):
                self.after = self.model.optimizer.momentums[0].numpy()

    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.05, 0.5)
    watch = Watch()
    dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
    fit(net, balancer, dataset, epochs=2, callbacks=[schedule, watch])
    np.testing.assert_allclose(watch.after, 0.5 * watch.before, rtol=1e-5)
    np.testing.assert_allclose(float(net.optimizer.learning_rate), 0.025, rtol=1e-6)


def check_a_loaded_model_trains_on_where_it_stood():
    def train(net, epochs):
        balancer = getattr(net.optimizer, "balancer", None)
        dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
        fit(net, balancer, dataset, epochs=epochs)

    straight = model()
    compile_model(straight, sgd(hvd.Balancer(B, "even")))
    train(straight, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        straight.save(path)
        loaded = hvd.load_model(path, balancer=hvd.Balancer(B, "even"))
    train(straight, 1)
    train(loaded, 1)
    np.testing.assert_allclose(flat(loaded), flat(straight), atol=1e-6)


def check_xla_is_turned_off_before_the_first_step():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer), jit_compile=True)
    fit(net, balancer, balancer.dataset(images(4 * B), shuffle_seed=SEED), epochs=1)
    assert not net.jit_compile


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
    callback = hvd.callbacks.DynamicLearningRateCallback(balancer)
    callback.set_model(model())
    compile_model(callback.model, sgd(None))
    with pytest.raises(ValueError, match="does not follow this balancer"):
        callback.on_train_begin()


def check_a_watchdog_names_the_rank_that_others_wait_for():
    lines = []

    class Told(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
            if "is in on_train_batch_begin" in lines[-1]:
                told.touch()

    class Sleepy(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if (batch, hvd.rank()) == (1, 1):
                end = time.monotonic() + 20
                while time.monotonic() < end and not told.exists():
                    time.sleep(0.01)

    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
    fit(net, balancer, dataset, epochs=1)  # The graph is built.
    logger = logging.getLogger("hvd_dbs.watchdog")
    with tempfile.TemporaryDirectory() as folder:
        told = Path(allgather_text(balancer.collective, folder)[0]) / "told"
        handler = Told()
        logger.addHandler(handler)
        watchdog = hvd.callbacks.ProgressWatchdogCallback(balancer, warn_seconds=0.8)
        try:
            fit(net, balancer, dataset, epochs=1, callbacks=[watchdog, Sleepy()])
        finally:
            logger.removeHandler(handler)
    # On a busy machine another step may be named too.
    named = [line for line in lines if "is in on_train_batch_begin" in line]
    if hvd.size() == 1 or hvd.rank() != 0:
        assert not named
        return
    place = f"rank 1 (host {socket.gethostname()}, process "
    assert len(named) == 1
    assert named[0].startswith(place)
    assert "Last finished step: epoch 0, step 0. It is in on_train_batch_begin" in named[0]
    assert "Rank 0 waits for it." in named[0]
