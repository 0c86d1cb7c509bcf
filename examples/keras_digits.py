"""Trains a small convolutional net on scanned digits, on ranks of any speed.

The same script runs as one process, under `horovodrun` and under `mpirun`:

    python examples/keras_digits.py
    horovodrun -np 4 python examples/keras_digits.py --strategy dbs

To see it balance on one machine, make the ranks unequal:

    scripts/heterogeneous.sh --speeds 1,1,0.5,0.25 --from 1 -- \
        horovodrun -np 4 python examples/keras_digits.py

`--data DIR` trains on CIFAR-10's binary files instead.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import keras
import tensorflow as tf

import hvd_dbs.keras as hvd

sys.path.insert(0, str(Path(__file__).resolve().parent))
import datasets


def make_model(input_shape: tuple[int, ...]) -> keras.Model:
    """A convolutional net with enough compute a sample that a machine's speed shows."""
    return keras.Sequential(
        [
            keras.layers.Input(input_shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    """Trains, and prints the test accuracy on rank 0."""
    parser = argparse.ArgumentParser(description="Digits on unequal ranks.")
    parser.add_argument("--data", help="folder with CIFAR-10's binary files (default: digits)")
    parser.add_argument(
        "--strategy", default="adaptive", help="how to balance, such as even, dbs, adaptive"
    )
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--journal", help="file for hvd-dbs report: who is slow, who waits")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hvd_dbs").setLevel(logging.INFO)

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # One for each rank.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    keras.utils.set_random_seed(1 + hvd.rank())
    train, test = datasets.load(options.data)

    balancer = hvd.Balancer(
        options.global_batch_size, strategy=options.strategy, journal=options.journal
    )
    dataset = balancer.dataset(train, shuffle_seed=7)

    model = make_model(train[0].shape[1:])
    optimizer = keras.optimizers.SGD(options.learning_rate, momentum=0.9)
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, balancer=balancer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        dataset,
        epochs=options.epochs,
        shuffle=False,  # The order comes from the balancer.
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
        ],
    )
    loss, accuracy = model.evaluate(  # On all ranks, each its part.
        balancer.dataset(test, training=False),
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    )
    if hvd.rank() == 0:
        print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
