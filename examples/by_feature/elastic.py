r"""Elastic: ranks join, leave and fail, and training continues.

    printf 'localhost:1\n127.0.0.1:1\n' > hosts; printf '#!/bin/sh\ncat hosts\n' > discover.sh
    chmod +x discover.sh
    horovodrun --gloo --min-np 1 --max-np 4 -np 2 --network-interfaces lo \
        --host-discovery-script ./discover.sh python examples/by_feature/elastic.py

It also runs as one process, and on ranks that stay (`docs/elastic.md`).
"""

import sys
from pathlib import Path

import keras
import tensorflow as tf

import hvd_dbs.keras as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import datasets

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:  # One for each rank.
    tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
keras.utils.set_random_seed(1)
(images, labels), test = datasets.load_digits(num_copies=1)
balancer = hvd.Balancer(global_batch_size=128)

model = keras.Sequential(
    [
        keras.layers.Input((32, 32, 1)),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), balancer=balancer)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])

# New: what is committed, and what runs again whenever the ranks change.
state = hvd.elastic.KerasState(model, epoch=0, batch=0)


@hvd.elastic.run
def train(state):
    """Trains to the end, or until the ranks change."""
    dataset = balancer.dataset((images, labels), shuffle_seed=7)
    callbacks = [
        # New: no BroadcastGlobalVariablesCallback, since ranks begin from the state.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
        # New: a lost rank costs the others at most five steps.
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=5),
    ]
    model.fit(
        dataset,
        initial_epoch=state.epoch,  # New: the epoch of the last commit.
        epochs=4,
        shuffle=False,  # The order comes from the balancer.
        verbose=0,
        callbacks=callbacks,
    )


train(state)  # New: returns after the last epoch.

if hvd.rank() == 0:
    # New: rank 0 alone, since after training no rank waits for a lost one.
    results = model.evaluate(*test, return_dict=True, verbose=0)
    print(f"test accuracy {results['accuracy']:.4f}")
