"""TFRecord files: each rank reads the records of its part, and nothing else.

    horovodrun -np 2 python examples/by_feature/tfrecord.py

On several hosts the folder must be one that all of them see (`docs/data.md`).
"""

import sys
import tempfile  # New
from pathlib import Path

import keras
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.tensorflow import broadcast_object  # New

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import datasets
from keras_tfrecord import parse, write_files  # New: images as PNG, and back.

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

# New: rank 0 writes the files; no rank reads before it has received their folder.
folder = tempfile.TemporaryDirectory()
if hvd.rank() == 0:
    write_files(images, labels, Path(folder.name))
files = Path(broadcast_object(folder.name)) / "train-*.tfrecord"
dataset = balancer.dataset(hvd.data.TFRecords(files, parse, block_size=8), shuffle_seed=7)
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
