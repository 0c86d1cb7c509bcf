"""A journal of all measurements and decisions, and the report of it: who is slow, who waits.

    horovodrun -np 2 python examples/by_feature/report.py

It works without balancing too, with `strategy="even"` (`docs/journal.md`).
"""

import sys
from pathlib import Path

import keras
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.cli.main import main as hvd_dbs_command  # New

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import datasets

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:  # One for each rank.
    tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
keras.utils.set_random_seed(1)
(images, labels), test = datasets.load_digits(num_copies=1)
# New: rank 0 writes a line for each round; the file may be read while the job runs.
journal = sys.argv[1] if len(sys.argv) > 1 else "run.jsonl"
balancer = hvd.Balancer(global_batch_size=128, journal=journal)

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

dataset = balancer.dataset((images, labels), shuffle_seed=7)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.DynamicBatchSizeCallback(balancer),
]
model.fit(
    dataset,
    epochs=4,
    shuffle=False,  # The order comes from the balancer.
    verbose=0,
    callbacks=callbacks,
)

results = model.evaluate(
    balancer.dataset(test, training=False),  # Each rank evaluates its part.
    callbacks=[hvd.callbacks.MetricAverageCallback()],
    return_dict=True,
    verbose=0,
)
if hvd.rank() == 0:
    print(f"test accuracy {results['accuracy']:.4f}")
    # New: in a shell this is `hvd-dbs report run.jsonl`.
    hvd_dbs_command(["report", journal], standalone_mode=False)
