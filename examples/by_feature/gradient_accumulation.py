"""Gradient accumulation: one update of several passes, for global batches that do not fit.

    horovodrun -np 2 python examples/by_feature/gradient_accumulation.py

Plans and local batch sizes are those of a pass. Each pass is reduced, so communication is not saved
(`docs/coming_from_horovod.md`).
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
balancer = hvd.Balancer(global_batch_size=64)  # New: the samples of a pass.

model = keras.Sequential(
    [
        keras.layers.Input((32, 32, 1)),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
# New: an update takes the mean gradient of two passes, of 128 samples as before.
optimizer = hvd.DistributedOptimizer(
    keras.optimizers.Adam(0.01),
    balancer=balancer,
    backward_passes_per_step=2,
    average_aggregated_gradients=True,
)
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
