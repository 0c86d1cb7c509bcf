"""Jobs in which one rank runs out of memory, and others do not."""

from __future__ import annotations

import re

from tests.jobs import horovodrun, mpirun, python, run_job

TRAINING = """
import logging
import keras, numpy as np, tensorflow as tf
import hvd_dbs.keras as hvd

logging.basicConfig(level=logging.INFO, format="%(message)s")
hvd.init()
keras.utils.set_random_seed(1)
fits = 7 if hvd.rank() == 0 else 16

class Full(keras.layers.Layer):
    def call(self, x, training=False):
        def allocate(num_samples):
            if num_samples > fits:
                raise MemoryError("on purpose")
            return num_samples
        if not training:
            return x
        number = tf.ensure_shape(tf.numpy_function(allocate, [tf.shape(x)[0]], tf.int32), [])
        return x + 0 * tf.cast(number, x.dtype)

net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), Full()])
balancer = hvd.Balancer(16, hvd.strategies.static([1, 1]))
net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer), "mse")
dataset = balancer.dataset((np.ones((64, 4)), np.ones((64, 3))), shuffle_seed=7)

@hvd.elastic.run
def train(state):
    net.fit(dataset, epochs=2, initial_epoch=state.epoch, verbose=0, shuffle=False, callbacks=[
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ])

state = hvd.elastic.KerasState(net, epoch=0)
train(state)
print(f"DONE {state.epoch} {balancer.plan}", flush=True)
"""


def test_it_becomes_a_bound_and_training_goes_on(tmp_path):
    script = tmp_path / "discover.sh"
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    script.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAINING)
    job = run_job(
        [
            *("horovodrun", "--gloo", "-np", "2", "--min-np", "2", "--max-np", "2"),
            *("--network-interfaces", "lo", "--host-discovery-script", str(script)),
            *python(str(tmp_path / "train.py")),
        ],
        240,
        {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"},
    )
    assert job.exit_code == 0, job.output
    done = re.findall(r"DONE 2 \[(\d+), (\d+)\]", job.output)
    assert len(done) == 2, job.output
    assert {sum(map(int, plan)) for plan in done} == {16}
    assert {min(map(int, plan)) for plan in done} == {7}
    found = re.findall(r"this rank gets fewer samples.*in a step of (\d) samples", job.output)
    assert found == ["8"], job.output


def test_in_another_job_it_ends_all_ranks_and_all_name_it(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    job = run_job(mpirun(2, python(str(tmp_path / "train.py"))), 120)
    assert job.exit_code not in (0, -1), job.output  # Nor has it been killed after the time.
    cause = (
        r"Rank 0 \(host .*\) has run out of memory in a step of 8 samples: .*max_batch_size=.*: 7; "
        r"or give micro_batch_size"
    )
    first = rf"rank 0 of 2 \(.*\) has failed: StepTooLargeError: {cause}"
    assert re.search(first, job.output), job.output
    other = rf"rank 1 of 2 \(.*\) ends because of another rank: {cause}"
    assert re.search(other, job.output), job.output


LOOP = """
import logging
import keras, numpy as np, tensorflow as tf
import hvd_dbs.keras as hvd

logging.basicConfig(level=logging.INFO, format="%(message)s")
hvd.init()
keras.utils.set_random_seed(1)
layer = keras.layers.Dense(3)
layer.build((None, 4))
balancer = hvd.Balancer(16, hvd.strategies.static([3, 1]))
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer)

@tf.function(reduce_retracing=True)
def step(x, y):
    with tf.GradientTape() as tape, hvd.global_batch(balancer):
        loss = hvd.global_mean((layer(x) - y) ** 2)
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, layer.trainable_variables))

dataset = balancer.dataset((np.ones((64, 4), "float32"), np.ones((64, 3), "float32")))
for epoch in balancer.epochs(dataset, 1):
    for number, (x, y) in enumerate(epoch):
        if number == 2 and hvd.rank() == 0:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating on purpose")
        step(x, y)
"""


def test_in_a_loop_of_ones_own_it_is_named_by_all_ranks(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    job = run_job(horovodrun(2, python(str(tmp_path / "train.py")), "--gloo"), 120)
    assert job.exit_code not in (0, -1), job.output
    cause = (
        r"Rank 0 \(host .*\) has run out of memory in a step of 12 samples: OOM when allocating on "
        r"purpose\. Bound it: .*: 10; or give micro_batch_size\."
    )
    first = rf"rank 0 of 2 \(.*\) has failed: ResourceExhaustedError: {cause}"
    assert re.search(first, job.output), job.output
    assert re.search(rf"rank 1 of 2 \(.*\) ends because of another rank: .*{cause}", job.output)
