"""A training that ends in mid-epoch by a fault, or goes on; started by `test_resume.py`.

Arguments: a folder, and the fault: "exception" or "kill" on the last rank, or "none". Each rank
notes the samples of each step that is through.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    SEED,
    compile_model,
    flat,
    images,
    model,
    one_process_run,
    scripted,
    sgd,
)

B = 12
NUM_SAMPLES = 7 * B + 5
NUM_EPOCHS = 3
FAULTS = {"exception": (1, 4), "kill": (2, 2), "none": (NUM_EPOCHS, 0)}
"""Epoch, and steps in it, after which the fault comes."""


def main(folder: Path, fault: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weights at the end, and those of one process on whole global batches."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    plans = [[B - size + 1, *[1] * (size - 1)], [*[1] * (size - 1), B - size + 1]]
    balancer = hvd.Balancer(B, scripted(plans), every=2)
    begins_anew = fault == "exception"  # The others have their weights from what was saved.
    net = model(seed=1 if begins_anew else 5)
    compile_model(net, sgd(balancer))
    x, y = images(NUM_SAMPLES)
    dataset = balancer.dataset((x, y), shuffle_seed=SEED)
    notes = (folder / f"{fault}-{rank}.jsonl").open("w", buffering=1)

    class Note(hvd.callbacks.DynamicBatchSizeCallback):
        """Notes the positions of each step."""

        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self.start = balancer.cursor.num_used

        def on_train_batch_end(self, batch, logs=None):
            noted = [self.epoch, self.start, balancer.loop.samples_in_step(batch)]
            notes.write(json.dumps(noted) + "\n")
            super().on_train_batch_end(batch, logs)

    class Fault(hvd.callbacks.TrainingStateCallback):
        """Dies when the step is saved."""

        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if FAULTS[fault] == (self.epoch, balancer.loop.position.steps_done):
                balancer.gather_state_dict()  # All have noted it, and rank 0 has saved.
                if rank == size - 1 and fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif rank == size - 1:
                    raise ArithmeticError("a fault on purpose")

    net.fit(
        dataset,
        epochs=NUM_EPOCHS,
        verbose=0,
        shuffle=False,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            Note(balancer),
            Fault(folder / "state", balancer, every=1),
        ],
    )
    return flat(net), one_process_run(model(seed=1), (x, y), B)[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
