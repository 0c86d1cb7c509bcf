"""Two networks with an optimizer each, in a training loop of your own, as in a GAN.

    horovodrun -np 2 python examples/by_feature/two_optimizers.py

A generator turns noise into changes of the images on which the classifier errs; the classifier
learns on the changed images. `docs/own_loops.md` has what such a loop may do.
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
# New: a second network whose noise misleads the first one, and an optimizer for it.
generator = keras.Sequential([keras.layers.Conv2D(1, 5, padding="same")])
generator.build((None, 32, 32, 1))
generator_optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), balancer=balancer)
hvd.broadcast_variables([*model.variables, *generator.variables], root_rank=0)
tf.random.set_seed(1 + hvd.rank())  # Each rank draws other noise.


@tf.function(reduce_retracing=True)
def train_step(x, y):
    """Trains both networks on this rank's part of a global batch."""
    with tf.GradientTape(persistent=True) as tape, hvd.global_batch(balancer):
        noise = generator(tf.random.normal(tf.shape(x)))
        value = loss(y, model(x + 0.2 * tf.tanh(noise), training=True))
        opposite = -value
    weights, of_generator = model.trainable_variables, generator.trainable_variables
    optimizer.apply(tape.gradient(value, weights), weights)
    generator_optimizer.apply(tape.gradient(opposite, of_generator), of_generator)


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
