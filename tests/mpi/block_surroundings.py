"""What runs around the Python blocks of README and docs: `documented_blocks.py` runs both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON = """
import keras
import numpy as np
import tensorflow as tf
import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow

keras.utils.set_random_seed(1)
images = np.random.default_rng(0).normal(size=(600, 8)).astype("float32")
labels = np.arange(600) % 3
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
balancer = hvd.Balancer(global_batch_size=256)
dataset = balancer.dataset((images, labels), shuffle_seed=7)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer)
model.compile(optimizer, loss, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.DynamicBatchSizeCallback(balancer),
]
"""
INSTEAD = {
    "loss=...": "loss=loss",
    "callbacks=[...]": "callbacks=callbacks",
    "epochs=10,": "epochs=2,",
}
"""In all blocks: what a reader adds, and less to do."""


@dataclass(frozen=True)
class Around:
    """What a block needs.

    Attributes:
        page: Where it is.
        text: It contains that; empty: all blocks of the page.
        before: Runs before it.
        after: Runs after it: uses what it defines.
        instead: Replaces parts of it, such as what is left out or takes long.
    """

    page: str
    text: str = ""
    before: str = ""
    after: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)


AROUND = [
    Around("README.md", "balancer = ", "augment = lambda x, y: (x + 0.1, y)"),
    Around(
        "docs/batch_statistics.md",
        "SyncBatchNormalization()",
        after="""
pixels = np.full((4, 8, 8, 1), hvd.rank(), "float32")
model(pixels, training=True)
means = hvd.allgather(tf.expand_dims(model.layers[1].moving_mean.value, 0))
assert np.any(means[0]) and np.array_equal(means[0], means[1])
""",
        instead={"    ...\n": "\n"},
    ),
    Around(
        "docs/batch_statistics.md",
        "AverageState",
        after="""
class Codebook(keras.layers.Layer):
    def build(self, shape):
        self.state = self.add_weight(shape=(2,), trainable=False)

    def call(self, x):
        return x

model = keras.Sequential([keras.Input((8,)), Codebook(name="codebook"), keras.layers.Dense(3)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer=balancer), loss)
setting = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda *_: model.layers[0].state.assign([hvd.rank(), 1.0])
)
model.fit(dataset, shuffle=False, callbacks=[*callbacks, setting, AverageState()])
assert model.layers[0].state.numpy().tolist() == [0.5, 1.0]
""",
    ),
    Around(
        "docs/changing_batches.md",
        "class Grow",
        after="""
growing = {"initial_epoch": 29, "epochs": 31, "shuffle": False}
model.fit(dataset, **growing, callbacks=[*callbacks, Grow()])
assert balancer.global_batch_size == 1024
""",
    ),
    Around(
        "docs/observing.md",
        "balancer.observe(",
        after="""
model.fit(dataset, epochs=5, shuffle=False, callbacks=callbacks)
import os
assert os.path.isdir("logs/ranks") == (hvd.rank() == 0)
""",
    ),
    # One kind of device for all ranks that there are here, and two that no rank has.
    Around("docs/devices.md", "NVIDIA A100*", instead={"NVIDIA A100*": "?*"}),
    Around(
        "docs/devices.md",
        "*-16GB",
        instead={'"*-16GB": 48, "Tesla T4": 48, "*-80GB": 256': '"?*": 256, "Tesla T4": 48'},
    ),
    Around("docs/micro_batches.md", "NVIDIA A100*", instead={"NVIDIA A100*": "?*"}),
    Around("docs/elastic.md", before="optimizer = keras.optimizers.SGD(0.1)"),
    Around(
        "docs/exactness.md",
        "class Autoencoder",
        after="""
x = keras.Input((6, 4))
model = Autoencoder(x, keras.layers.Dense(4)(x))
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer=balancer))
series, mask = np.ones((300, 6, 4), "float32"), np.arange(1800).reshape(300, 6) % 5 > 1
dataset = balancer.dataset((series, mask.astype("float32")), shuffle_seed=7)
before = model.get_weights()
model.fit(dataset, shuffle=False, callbacks=callbacks)
assert not np.array_equal(before[0], model.get_weights()[0])
""",
    ),
    Around(
        "docs/exactness.md",
        "global_clipnorm",
        before="gradients = [tf.ones_like(variable) for variable in model.trainable_variables]",
        instead={
            "optimizer.apply": "for epoch in balancer.epochs(dataset, 1):\n"
            "    for _ in epoch:\n        optimizer.apply"
        },
    ),
    Around(
        "docs/journal.md",
        "journal=",
        after="""
from pathlib import Path
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer=balancer), loss)
model.fit(
    balancer.dataset((images, labels), shuffle_seed=7),
    epochs=2,
    shuffle=False,
    callbacks=[hvd.callbacks.DynamicBatchSizeCallback(balancer)],
)
assert Path("run.jsonl").exists() == (hvd.rank() == 0)
""",
    ),
    Around(
        "docs/own_loops.md",
        "def train_step(real)",
        """
generator = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8)])
critic = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
dataset = balancer.dataset(images, shuffle_seed=7)
""",
        """
tensors = [*generator.get_weights(), *critic.get_weights()]
mine = np.concatenate([w.ravel() for w in tensors])[np.newaxis]
assert np.ptp(hvd.allgather(mine), axis=0).max() == 0
assert generator_optimizer.iterations == critic_optimizer.iterations == 2 * 3
""",
        instead={"balancer.epochs(dataset, 10)": "balancer.epochs(dataset, 2)"},
    ),
    Around(
        "docs/own_loops.md",
        "class Gan",
        """
generator = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8)])
critic = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
dataset = balancer.dataset((images[:, :4], images), shuffle_seed=7)
""",
    ),
    Around(
        "docs/own_loops.md",
        "balancer.loop.begin_training()",
        """
@tf.function(reduce_retracing=True)
def train_step(x, y):
    with tf.GradientTape() as tape, hvd.global_batch(balancer):
        value = loss(y, model(x, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
""",
    ),
    Around(
        "docs/own_loops.md",
        "weighted_allreduce",
        "x, y, tensor = images[:8], labels[:8], tf.constant(1.0 + hvd.rank())",
        "assert mean == 1.5 and len(gradients) == 2",
    ),
    Around(
        "docs/simulator.md",
        "milliseconds",
        "model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])",
        "assert 0 < milliseconds(32) < 60_000",
    ),
    Around(
        "docs/strategies.md",
        'Strategy("careful"',
        after="assert hvd.Balancer(512, strategy).plan.batch_sizes == (256, 256)",
    ),
    Around(
        "docs/verify.md",
        "my_function",
        'x_train, y_train = np.ones((64, 20), "float32"), labels[:64]',
        "model, samples = my_function(); model.fit(*samples)",
    ),
    Around(
        "docs/verify.md",
        "class ScaleByValid",
        after="""
model = keras.Sequential([keras.Input((8,)), ScaleByValid(), keras.layers.Dense(3)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer=balancer), loss)
model.fit(dataset, shuffle=False, callbacks=callbacks)
""",
    ),
]
