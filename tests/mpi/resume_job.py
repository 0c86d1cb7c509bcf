"""A training that is ended in mid-epoch, or goes on; started by `test_resume.py`.

Arguments: a folder, and the number of steps of epoch 1 after which the job dies (0: it does not).
Each rank notes the samples that counted; rank 0 the weights at the end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

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


def main(folder: Path, steps: int) -> None:
    hvd.init()
    size = hvd.size()
    plans = [[B - size + 1, *[1] * (size - 1)], [*[1] * (size - 1), B - size + 1]]
    balancer = hvd.Balancer(B, scripted(plans), every=2)
    net = model(seed=1 if steps else 5)  # The second run has its weights from the first.
    compile_model(net, sgd(balancer))
    x, y = images(NUM_SAMPLES)
    dataset = balancer.dataset((x, y), shuffle_seed=SEED)
    noted = []

    class Note(hvd.callbacks.DynamicBatchSizeCallback):
        """Notes the positions of each step, and dies."""

        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self.start = balancer.cursor.num_used

        def on_train_batch_end(self, batch, logs=None):
            noted.append([self.epoch, self.start, balancer.loop.samples_in_step(batch)])
            super().on_train_batch_end(batch, logs)

    class Die(hvd.callbacks.TrainingStateCallback):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if steps and (noted[-1][0], batch + 1) == (1, steps):
                finish(folder, noted, net)
                balancer.gather_state_dict()  # Nobody dies before the others have noted.
                os._exit(1)

    net.fit(
        dataset,
        epochs=3,
        verbose=0,
        shuffle=False,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            Note(balancer),
            Die(folder / "state", balancer, every=1),
        ],
    )
    finish(folder, noted, net)
    if hvd.rank() == 0:
        expected, _ = one_process_run(model(seed=1), (x, y), B)
        (folder / "expected.json").write_text(json.dumps(expected.tolist()))


def finish(folder, noted, net):
    name = f"{hvd.size()}-{hvd.rank()}.json"
    (folder / name).write_text(json.dumps({"noted": noted, "weights": flat(net).tolist()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
