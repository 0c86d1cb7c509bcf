"""Every script of examples/by_feature, as it stands. Run on any number of ranks."""

from __future__ import annotations

import functools
import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.job.journal import read_journal
from tests.jobs import REPOSITORY
from tests.mpi.problems import assert_equal_on_all_ranks, hvd_collective
from tests.mpi.together import shared_folder

FOLDER = REPOSITORY / "examples" / "by_feature"
NUM_IMAGES, B, NUM_EPOCHS = 1536, 128, 4
NUM_UPDATES = NUM_EPOCHS * NUM_IMAGES // B


def run(name, *arguments):
    """The global names that a script leaves, and what it printed.

    Any script learns the digits, in as many updates, and prints the accuracy.
    """
    printed = io.StringIO()
    words = [f"{name}.py", *map(str, arguments)]
    with mock.patch.object(sys, "argv", words), redirect_stdout(printed):
        names = runpy.run_path(str(FOLDER / words[0]), run_name="__main__")
    assert names["model"].optimizer.iterations == NUM_UPDATES
    if hvd.rank() == 0:
        assert names["results"]["accuracy"] > 0.9  # By chance: 0.1.
        assert f"test accuracy {names['results']['accuracy']:.4f}\n" in printed.getvalue()
    return names, printed.getvalue()


@functools.cache
def base():
    """The script that others are compared with."""
    return run("base")[0]


def weights(names):
    return np.concatenate([w.ravel() for w in names["model"].get_weights()])


def check_base():
    assert sum(base()["balancer"].plan.batch_sizes) == B


def check_mixed_precision():
    policy = keras.mixed_precision.dtype_policy()
    try:
        names, _ = run("mixed_precision")
    finally:
        keras.mixed_precision.set_dtype_policy(policy)  # Later checks run in this process too.
    first, *_, last = names["model"].layers
    assert (first.compute_dtype, last.compute_dtype) == ("float16", "float32")
    assert isinstance(names["model"].optimizer, keras.optimizers.LossScaleOptimizer)


def check_gradient_accumulation():
    names, _ = run("gradient_accumulation")
    assert names["balancer"].loop.position.num_steps * NUM_EPOCHS == 2 * NUM_UPDATES


def check_micro_batches():
    names, _ = run("micro_batches")
    assert all(samples % 16 == 0 for samples in names["balancer"].plan.batch_sizes)
    np.testing.assert_allclose(weights(names), weights(base()), atol=0.01)


def check_tfrecord():
    names, _ = run("tfrecord")
    assert names["balancer"].loop.position.stage.num_samples == NUM_IMAGES


def check_stream():
    names, _ = run("stream")
    assert names["dataset"].cardinality() < 0  # It has no end.


def check_own_loop():
    names, _ = run("own_loop")
    np.testing.assert_allclose(weights(names), weights(base()), atol=0.01)


def check_two_optimizers():
    names, _ = run("two_optimizers")
    assert names["generator_optimizer"].iterations == NUM_UPDATES
    tensors = [*names["model"].get_weights(), *names["generator"].get_weights()]
    assert_equal_on_all_ranks(np.concatenate([w.ravel() for w in tensors]))
    noise = hvd_collective().allgather(tf.random.normal([4]).numpy())
    assert len(np.unique(noise)) == noise.size  # No two ranks draw the same.


def check_elastic():
    names, _ = run("elastic")
    assert names["state"].epoch == NUM_EPOCHS


def check_report():
    with shared_folder() as folder:
        _, printed = run("report", folder / "run.jsonl")
        if hvd.rank() == 0:
            (part,), num_damaged = read_journal(Path(folder) / "run.jsonl")
            assert num_damaged == 0
            assert {sum(line.plan) for line in part.rounds} == {B}
            assert f"global batch {B}, adaptive" in printed


def check_cost():
    names, _ = run("cost")
    balancer, most_ink = names["balancer"], names["ink"].max()
    epoch = next(balancer.epochs(names["dataset"], NUM_EPOCHS + 1, initial_epoch=NUM_EPOCHS))
    for step, (images, _) in enumerate(epoch):
        ink = hvd_collective().allgather(np.array([images.numpy().sum()]))[:, 0]
        shares = np.array(balancer.loop.position.stage.batch_sizes_in(step)) / B
        # A border between ranks is in the middle of a sample at worst.
        np.testing.assert_allclose(ink, shares * ink.sum(), atol=0.51 * most_ink)


def check_resume():
    with shared_folder() as folder:
        first, printed = run("resume", folder)
        assert "continues" not in printed
        second, printed = run("resume", folder)
        if hvd.rank() == 0:
            assert printed.startswith(f"continues in epoch 3 with sample {10 * B}\n")
        np.testing.assert_allclose(weights(second), weights(first), atol=0.01)
