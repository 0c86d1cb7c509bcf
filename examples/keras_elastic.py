r"""Trains on scanned digits while ranks come, go and die.

A script tells which hosts there are; it is asked every second:

    printf '#!/bin/sh\ncat hosts\n' > discover.sh; chmod +x discover.sh
    printf 'localhost:1\n127.0.0.1:1\n' > hosts
    horovodrun --gloo --min-np 1 --max-np 4 -np 2 --network-interfaces lo \
        --host-discovery-script ./discover.sh python examples/keras_elastic.py

While it runs, add a host (`echo 127.1:1 >> hosts`: another name of this machine), take one away
again, or kill one of the ranks. The same script runs as one process and under `mpirun` as well;
with `--save FOLDER` each start goes on where the last one was saved, on any number of ranks.
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
from keras_digits import make_model


def parse_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Digits on ranks that come and go.")
    parser.add_argument("--strategy", default="adaptive", help="how to balance")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument(
        "--per-rank",
        action="store_true",
        help="let the global batch follow the number of ranks, and the learning rate follow it",
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument(
        "--drop-slow-ranks",
        type=int,
        metavar="MIN_NP",
        help="let ranks leave without which the job is faster, while so many are left",
    )
    parser.add_argument("--save", metavar="FOLDER", help="save there, and go on from what it holds")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints the test accuracy on rank 0."""
    options = parse_options()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hvd_dbs").setLevel(logging.INFO)

    # A rank that joins later does all of this alone, while the others train.
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # One for each rank.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    keras.utils.set_random_seed(1 + hvd.rank())
    train, (test_images, test_labels) = datasets.load(None)
    balancer = hvd.Balancer(options.global_batch_size, strategy=options.strategy)
    model = make_model(train[0].shape[1:])
    optimizer = keras.optimizers.SGD(options.learning_rate, momentum=0.9)
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, balancer=balancer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    global_batch = "per_rank" if options.per_rank else "constant"
    state = hvd.elastic.KerasState(
        model,
        epoch=0,
        batch=0,
        global_batch=global_batch,
        drop_slow_ranks=options.drop_slow_ranks is not None,
        min_ranks=options.drop_slow_ranks,
    )

    def callbacks() -> list[keras.callbacks.Callback]:
        chosen = [
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
            hvd.callbacks.DynamicLearningRateCallback(balancer),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=5),
        ]
        if options.save is not None:
            chosen.append(hvd.callbacks.TrainingStateCallback(options.save, balancer, 20))
        return chosen

    # And this with the others, each time their number changes.
    @hvd.elastic.run
    def fit(state: hvd.elastic.KerasState) -> None:
        model.fit(
            balancer.dataset(train, shuffle_seed=7),
            initial_epoch=state.epoch,
            epochs=options.epochs,
            shuffle=False,  # The order comes from the balancer.
            verbose=2 if hvd.rank() == 0 else 0,
            callbacks=callbacks(),
        )

    fit(state)
    if hvd.rank() == 0:
        loss, accuracy = model.evaluate(test_images, test_labels, verbose=0)
        print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
