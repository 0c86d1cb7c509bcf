"""Resuming: model and balancer are saved during training, and another run continues from there.

    horovodrun -np 2 python examples/by_feature/resume.py FOLDER     # twice, or after killing it

The folder must be one that all hosts see. `TrainingStateCallback(FOLDER, balancer, every=10)` does
this in one line, reads and writes on rank 0 alone, and survives a job that dies while it saves
(`docs/resuming.md`).
"""

import json  # New
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

# New: what an earlier run has saved, on any number of ranks.
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/resume")
folder.mkdir(parents=True, exist_ok=True)
if (folder / "balancer.json").exists():
    model = hvd.load_model(folder / "model.keras", balancer=balancer)
    balancer.load_state_dict(json.loads((folder / "balancer.json").read_text()))
    if hvd.rank() == 0:
        print(f"continues in epoch {balancer.cursor.epoch} with sample {balancer.cursor.num_used}")

dataset = balancer.dataset((images, labels), shuffle_seed=7)


# New: all ranks gather the balancer's state every 10 steps; rank 0 saves it with the model.
def save(step, logs):
    """Saves after a step."""
    if step % 10 == 9:
        state = balancer.gather_state_dict()
        if hvd.rank() == 0:
            model.save(folder / "model.keras")
            (folder / "balancer.json").write_text(json.dumps(state))


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.DynamicBatchSizeCallback(balancer),
    # New: after DynamicBatchSizeCallback, which counts the step.
    keras.callbacks.LambdaCallback(on_train_batch_end=save),
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
