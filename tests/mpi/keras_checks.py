"""Horovod's Keras interface on Keras 3. Run on 1 and 2 ranks."""

from __future__ import annotations

import logging
import socket
import tempfile
import time
from pathlib import Path

import horovod.tensorflow.keras as stock
import keras
import numpy as np

import hvd_dbs.keras as hvd
from hvd_dbs.comm.agreement import allgather_text
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    images,
    model,
    sgd,
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
    """Of optimizers whose buffers hold the rate; once of Muon's too, and not with loss scaling."""

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.before = self.momentums()

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0 and hasattr(self, "before"):
                self.after = self.momentums()

        def momentums(self):
            found = (v.numpy() for v in self.model.optimizer.variables if "momentum" in v.path)
            return np.concatenate([values.ravel() for values in found])

    optimizers = keras.optimizers
    for optimizer, policy, factor in (
        (optimizers.SGD(0.05, momentum=0.9), "float32", 0.5),
        (optimizers.SGD(0.05, momentum=0.9), "mixed_float16", 0.5),
        (optimizers.RMSprop(0.05, momentum=0.9), "float32", 0.5),
        (optimizers.Muon(0.05), "float32", 1.0),
    ):
        keras.mixed_precision.set_dtype_policy(policy)
        try:
            balancer = hvd.Balancer(B, "even")
            net = model()
            compile_model(net, hvd.DistributedOptimizer(optimizer, balancer=balancer))
            schedule = hvd.callbacks.LearningRateScheduleCallback(0.05, 0.5)
            watch = Watch()
            dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
            fit(net, balancer, dataset, epochs=2, callbacks=[schedule, watch])
        finally:
            keras.mixed_precision.set_dtype_policy("float32")
        assert np.any(watch.before)
        np.testing.assert_allclose(watch.after, factor * watch.before, rtol=1e-5)
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


def check_rank_0_alone_keeps_the_best_model():
    arrays, balancer, net = images(3 * B), hvd.Balancer(B, "even"), model()
    compile_model(net, sgd(balancer))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.keras"
        keeps = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
        dataset = balancer.dataset(arrays, shuffle_seed=SEED)
        fit(net, balancer, dataset, 1, [keeps] if hvd.rank() == 0 else [])
        assert path.exists() == (hvd.rank() == 0)
        if path.exists():
            kept = keras.models.load_model(path, compile=False)
            np.testing.assert_array_equal(flat(kept), flat(net))


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
