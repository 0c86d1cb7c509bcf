"""Statistics that each rank computes of its own batches. Run on 2 and 3 ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    SEED,
    assert_equal_on_all_ranks,
    compile_model,
    fit,
    hvd_collective,
    images,
    sgd,
)
from tests.mpi.statistics_checks import NUM_SAMPLES, B, all_weights, convolutional, train
from tests.mpi.together import captured


class StatisticsOfRanks(keras.callbacks.Callback):
    """Notes what ranks have at the end of their last step, in validation, and in `on_epoch_end`.

    Args:
        notes: Gets them.
        balancer: Of the training.
    """

    def __init__(self, notes: list[tuple[str, NDArray[np.float64], int]]) -> None:
        super().__init__()
        self.notes = notes

    def note(self, place: str) -> None:
        values = [w.numpy().ravel() for w in self.model.non_trainable_weights]
        samples = self.model.optimizer.balancer.loop.samples_in_epoch
        self.notes.append((place, np.concatenate(values).astype(np.float64), samples))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.note("step")

    def on_test_begin(self, logs: Any = None) -> None:
        self.note("validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.note("epoch")


def check_statistics_of_own_batches_are_averaged_once_an_epoch():
    before, after = [], []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 2

    for stop in ((), (Stop(),)):
        before.clear()
        after.clear()
        net = convolutional(keras.layers.BatchNormalization)
        balancer = hvd.Balancer(B, hvd.strategies.static([1, *[3] * (hvd.size() - 1)]))
        compile_model(net, sgd(balancer))
        net.fit(
            balancer.dataset(images(4 * B), shuffle_seed=SEED),
            epochs=2,
            verbose=0,
            shuffle=False,
            validation_data=images(8),
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                StatisticsOfRanks(before),
                hvd.callbacks.DynamicBatchSizeCallback(balancer),
                StatisticsOfRanks(after),
                *stop,
            ],
        )
        last = [i for i, note in enumerate(before) if note[0] == "step"][-1]
        rows = hvd_collective().allgather(before[last][1])
        weights = hvd_collective().allgather(np.array([before[last][2]]))[:, 0]
        assert np.ptp(rows, axis=0).max() > 1e-3  # Each rank has its own at the end of its steps.
        assert len(set(weights.tolist())) > 1
        expected = np.average(rows, axis=0, weights=weights).astype(np.float32)
        np.testing.assert_array_equal(after[-1][1], expected)
        if not stop:
            assert [note[0] for note in before[last:]] == ["step", "validation", "epoch"]
            np.testing.assert_array_equal(before[last + 1][1], expected)
        assert_equal_on_all_ranks(all_weights(net))


class RunningMean(keras.Layer):
    """Computes a state of each batch, as batch normalization does.

    Args:
        of_batches: Whether the state depends on the batches.
    """

    def __init__(self, of_batches: bool, name: str | None = None) -> None:
        super().__init__(name=name)
        self.of_batches = of_batches

    def build(self, input_shape: Any) -> None:
        self.mean = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if training:
            self.mean.assign(keras.ops.mean(inputs) if self.of_batches else 2 * self.mean)
        return inputs


def check_states_of_other_layers_that_differ_are_warned_of():
    keras.utils.set_random_seed(1)
    # Named: ranks that have made other numbers of layers would count them otherwise.
    layers = [RunningMean(False), RunningMean(True, name="running"), keras.layers.Dense(4)]
    net = keras.Sequential([keras.layers.Flatten(), *layers])
    with captured("hvd_dbs.keras") as records:
        train(net, images(2 * B))
    heard = [record.getMessage() for record in records]
    of_state = [line for line in heard if "A layer computes a state" in line]
    assert len(of_state) == int(hvd.rank() == 0), heard
    assert all("/running/" in line and " is off" in line for line in of_state)
    assert all("hvd.allreduce" in line for line in of_state)


class CountsSteps(keras.Layer):
    """Counts its calls in a whole number."""

    def build(self, input_shape: Any) -> None:
        self.steps = self.add_weight(
            shape=(), initializer="zeros", trainable=False, dtype="int64", name="steps"
        )

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if training:
            self.steps.assign(self.steps + 1)
        return inputs


def check_steps_that_a_layer_counts_otherwise_on_some_ranks_are_warned_of():
    """In the last step one rank alone has a sample. Once whole numbers were not compared."""
    net = keras.Sequential([keras.layers.Flatten(), CountsSteps(name="counts")])
    net.add(keras.layers.Dense(4))
    with captured("hvd_dbs.keras") as records:
        train(net, images(2 * B + 1))
    heard = [record.getMessage() for record in records]
    of_state = [line for line in heard if "/counts/steps is off by 1" in line]
    assert len(of_state) == int(hvd.rank() == 0), heard


def check_frozen_layers_are_left_alone():
    net = convolutional(keras.layers.BatchNormalization)
    net.layers[1].trainable = False
    frozen = [w.numpy() + hvd.rank() for w in net.layers[1].weights]

    class Load(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            net.layers[1].set_weights(frozen)

    train(net, images(NUM_SAMPLES), epochs=1, callbacks=[Load()])
    for weight, value in zip(net.layers[1].weights[2:], frozen[2:], strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    assert_equal_on_all_ranks(np.concatenate([w.numpy() for w in net.layers[-1].weights]))


def check_small_local_batches_are_warned_of_once():
    size = hvd.size()
    with captured("hvd_dbs.keras") as records:
        for batch, ratios, is_warned in (
            (8 * size, [1] * size, False),
            (200, [1, *[5] * (size - 1)], True),
        ):
            records.clear()
            balancer = hvd.Balancer(batch, hvd.strategies.static(ratios))
            net = convolutional(keras.layers.BatchNormalization)
            compile_model(net, sgd(balancer))
            dataset = balancer.dataset(images(2 * batch), shuffle_seed=SEED)
            fit(net, balancer, dataset, epochs=2)
            heard = [record.getMessage() for record in records]
            of_norm = [line for line in heard if "BatchNormalization" in line]
            assert len(of_norm) == int(is_warned and hvd.rank() == 0), heard
            assert all("hvd.layers.SyncBatchNormalization" in line for line in of_norm)
