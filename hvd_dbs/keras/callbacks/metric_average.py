"""Metrics of an epoch, averaged over all ranks."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np

from hvd_dbs.cluster import collective as job


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the logs of each epoch over all ranks, weighted by samples.

    Stands before callbacks that act on metrics, such as ReduceLROnPlateau. With a balanced
    optimizer training metrics are weighted by each rank's samples in the epoch; validation
    metrics, and all metrics otherwise, count the same for every rank, as in Horovod. Only metrics
    that every rank has are averaged: what a callback of rank 0 alone adds is left as it is.

    Args:
        device: Kept for Horovod's signature.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device
        self._collective: job.Collective | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Joins the other ranks."""
        self._collective = job.connect()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the logs by their averages, in place."""
        if self._collective is None or logs is None:
            return
        numbers = {name: value for name, value in logs.items() if np.ndim(value) == 0}
        texts = job.allgather_text(self._collective, json.dumps(sorted(numbers)))
        names = sorted(set.intersection(*(set(json.loads(text)) for text in texts)))
        balancer = getattr(self.model.optimizer, "balancer", None)
        samples = 1.0 if balancer is None else float(balancer.loop.samples_in_epoch)
        row = np.array([samples, *(float(numbers[name]) for name in names)])
        rows = self._collective.allgather(row)
        for i, name in enumerate(names, start=1):
            weights = np.ones(len(rows)) if name.startswith("val_") else rows[:, 0]
            counted = weights > 0
            logs[name] = float(np.average(rows[counted, i], weights=weights[counted]))
