"""A small elastic training that writes down what it does, for `tests.chaos` to disturb and check.

Each process appends to a file of its own: the state it begins from (`begin`), the samples of each
step before the step's gradients leave the rank (`step`), and its weights at the end (`end`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import time
import uuid
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from examples.datasets import load_scans
from hvd_dbs.tensorflow import broadcast_object
from tests.chaos.schedule import (
    GLOBAL_BATCH_SIZE,
    HOLD,
    HOSTS_WITHOUT_LIBRARY,
    JOURNAL,
    NUM_EPOCHS,
    WARN_SECONDS,
)

STEP_SECONDS, SAMPLE_SECONDS = 0.02, 0.001
"""What a step and each of its samples take on a rank at full speed, where ranks have speeds."""


class Notebook:
    """What this process did, line by line; a line that is written survives `kill -9`."""

    def __init__(self, folder: Path) -> None:
        self.host = os.environ.get("HOROVOD_HOSTNAME", "alone")
        # Processes of two hosts may have one number.
        self.process = f"{self.host}-{os.getpid()}"
        self._file = (folder / f"{self.process}.jsonl").open("a", buffering=1)

    def write(self, event: str, **values: Any) -> None:
        line = {"event": event, "time": time.time(), "process": self.process, **values}
        self._file.write(json.dumps(line) + "\n")


class NotingState(hvd.elastic.KerasState):
    """Writes down where training goes on from."""

    notebook: Notebook

    def sync(self) -> None:
        super().sync()
        self.run = broadcast_object(uuid.uuid4().hex, name="tests.chaos.run")
        self.notebook.write(
            "begin",
            run=self.run,
            rank=hvd.rank(),
            size=hvd.size(),
            commits=self.num_commits,
            epoch=self.epoch,
        )


class StepNotes(keras.callbacks.Callback):
    """Writes down each step's samples inside the step, and obeys the fault files."""

    def __init__(self, notebook: Notebook, state: NotingState, options: argparse.Namespace) -> None:
        super().__init__()
        self._notebook, self._folder, self._state = notebook, options.folder, state
        self._pause, self._holds = options.pause, options.hold
        self._epoch = self._step = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._step = batch
        time.sleep(self._pause)
        if self._holds and (self._epoch, batch) >= HOLD:
            self._holds = False
            self._notebook.write("held")
            while not (self._folder / "faults_over").exists():
                self._raise_if_told()
                time.sleep(0.05)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._raise_if_told()

    def _raise_if_told(self) -> None:
        if (self._folder / f"raise.{self._notebook.process}").exists():
            raise ArithmeticError("a fault on purpose")

    def note(self, ids: Any) -> Any:
        count = self._state.balancer.loop.samples_in_step(self._step)
        self._notebook.write(
            "step",
            run=self._state.run,
            epoch=self._epoch,
            step=self._step,
            commits=self._state.num_commits,
            ids=ids[:count].tolist(),
        )
        return np.int64(0)


class NotedModel(keras.Sequential):
    """Tells the samples of a step before its gradients are computed."""

    def train_step(self, data: Any) -> Any:
        (images, ids), labels = data
        noted = tf.numpy_function(self.step_notes.note, [ids], tf.int64)
        with tf.control_dependencies([noted]):
            images = tf.identity(images)
        return super().train_step((images, labels))


class Work(keras.layers.Layer):
    """Passes its input on when a rank of some speed would have computed it.

    Args:
        file: Where the speed is, if it is not 1.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def call(self, x: tf.Tensor) -> tf.Tensor:
        def work(x: Any) -> Any:
            speed = float(self._file.read_text() or 1) if self._file.exists() else 1.0
            time.sleep((STEP_SECONDS + SAMPLE_SECONDS * len(x)) / speed)
            return x

        return tf.ensure_shape(tf.numpy_function(work, [x], x.dtype, stateful=False), x.shape)


def main() -> None:
    """Trains; rank 0 leaves its weights beside the notes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--state", type=Path, help="for journal and saved state, if elsewhere")
    parser.add_argument("--strategy", default="dbs")
    parser.add_argument("--global-batch", default="constant")
    parser.add_argument("--batches-per-commit", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.15)
    parser.add_argument("--abort-seconds", type=float)
    parser.add_argument("--hold", action="store_true", help="do not end before the faults have")
    parser.add_argument("--speeds", action="store_true", help="let ranks have speeds, and leave")
    options = parser.parse_args()
    state_folder = options.state or options.folder
    state_folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("hvd_dbs").setLevel(logging.INFO)
    notebook = Notebook(options.folder)
    notebook.write("start", host=notebook.host)
    if notebook.host in HOSTS_WITHOUT_LIBRARY:
        os.environ["HVD_DBS_NATIVE"] = "0"

    hvd.init()
    keras.utils.set_random_seed(1)
    images, labels = load_scans()
    images = images.reshape(len(images), -1)
    balancer = hvd.Balancer(
        GLOBAL_BATCH_SIZE, strategy=options.strategy, journal=state_folder / JOURNAL
    )
    source = ((images, np.arange(len(images))), labels)
    # A data set made once serves all ranks there will be, but for another global batch.
    made_once = (
        balancer.dataset(source, shuffle_seed=3) if options.global_batch == "constant" else None
    )

    work = [Work(options.folder / f"speed.{notebook.host}")] if options.speeds else []
    layers = [*work, keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = NotedModel([keras.layers.Input([64]), *layers])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, balancer=balancer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    NotingState.notebook = notebook
    drops = {"drop_slow_ranks": True, "min_ranks": 1} if options.speeds else {}
    state = NotingState(model, epoch=0, batch=0, global_batch=options.global_batch, **drops)
    notes = StepNotes(notebook, state, options)
    object.__setattr__(model, "step_notes", notes)

    @hvd.elastic.run
    def train(state: NotingState) -> None:
        model.fit(
            made_once or balancer.dataset(source, shuffle_seed=3),
            epochs=NUM_EPOCHS,
            initial_epoch=state.epoch,
            verbose=0,
            callbacks=[
                notes,
                hvd.callbacks.MetricAverageCallback(),
                hvd.callbacks.DynamicBatchSizeCallback(balancer),
                hvd.callbacks.DynamicLearningRateCallback(balancer),
                hvd.callbacks.ProgressWatchdogCallback(
                    balancer, WARN_SECONDS, options.abort_seconds
                ),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state, options.batches_per_commit),
                # Saves what only the next job would read: commits are newer.
                hvd.callbacks.TrainingStateCallback(state_folder / "saved", balancer),
            ],
        )

    train(state)
    weights = [np.asarray(weight) for weight in model.get_weights()]
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
    notebook.write("end", digest=digest, commits=state.num_commits, epoch=state.epoch)
    if hvd.rank() == 0:
        np.savez(options.folder / "weights.npz", *weights)


if __name__ == "__main__":
    main()
