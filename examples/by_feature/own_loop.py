"""A training loop of your own instead of `fit`.

    horovodrun -np 2 python examples/by_feature/own_loop.py

`docs/own_loops.md` has what such a loop may do.
"""

import sys
from pathlib import Path

import keras
import tensorflow as tf  # New

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

dataset = balancer.dataset((images, labels), shuffle_seed=7)
# New: all that callbacks and fit do in the other scripts.
hvd.broadcast_variables(model.variables, root_rank=0)


@tf.function(reduce_retracing=True)
def train_step(x, y):
    """Trains on this rank's part of a global batch."""
    with tf.GradientTape() as tape, hvd.global_batch(balancer):
        value = loss(y, model(x, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


for epoch in balancer.epochs(dataset, 4):
    for x, y in epoch:
        train_step(x, y)

results = model.evaluate(
    balancer.dataset(test, training=False),  # Each rank evaluates its part.
    callbacks=[hvd.callbacks.MetricAverageCallback()],
    return_dict=True,
    verbose=0,
)
if hvd.rank() == 0:
    print(f"test accuracy {results['accuracy']:.4f}")
