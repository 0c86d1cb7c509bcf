"""The disturbances of DBS's own experiments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHANCE = 0.1
"""For each worker and epoch, that one begins; known from the reference code."""
EPOCHS = (4, 20)
"""How many epochs one lasts, both ends included; likewise."""
PARTS = (0.25, 0.5)
"""Time that it adds to an epoch, in parts of an undisturbed even one. The reference code adds 5 to
10 s; how long its epochs were is not known, so the parts are ours."""


def schedule(num_epochs: int, num_workers: int, seed: int) -> NDArray[np.float64]:
    """Parts of an epoch that each worker loses, shape `[epochs, workers]`.

    A worker has one disturbance at a time; a new one may begin when the last is over.
    """
    random = np.random.default_rng(seed)
    lost = np.zeros((num_epochs, num_workers))
    for worker in range(num_workers):
        epoch = 0
        while epoch < num_epochs:
            if random.random() >= CHANCE:
                epoch += 1
                continue
            length = int(random.integers(EPOCHS[0], EPOCHS[1] + 1))
            lost[epoch : epoch + length, worker] = random.uniform(*PARTS)
            epoch += length
    return lost
