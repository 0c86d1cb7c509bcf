"""Figures, plans and events of the job for TensorBoard."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import (
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    Summary,
    SummaryMetadata,
)
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_STRING

from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.observers.figures import job_figures, rank_figures
from hvd_dbs.job.observers.observer import Observer
from hvd_dbs.job.scores import RankScores

_MOST_RANKS = 32
"""Of more ranks the least, the median and the most are drawn: who tells a hundred lines apart?"""


class TensorBoard(Observer):
    """Writes a point for each round, and a text for each change of plan and each event.

    TensorBoard shows them under `hvd_dbs`, over steps of training since the observer was made.
    Keras's own `TensorBoard` callback shows the keys of the logs (`epoch_hvd_dbs/efficiency`)
    without it. The package `tensorboard` is not needed to write.

    Args:
        log_dir: The folder, made on rank 0's host if it is missing.

    Example:
        >>> balancer.observe(hvd.observers.TensorBoard("logs/ranks"))  # doctest: +SKIP
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._log_dir = os.fspath(log_dir)
        self._writer: tf.summary.SummaryWriter | None = None
        self._job: JobEntry | None = None
        self._step = 0

    def on_begin(self, job: JobEntry) -> None:
        """Another job's figures follow."""
        self._job = job
        self._opened()  # It takes long, and is no part of a round.

    def on_round(self, entry: RoundEntry, scores: RankScores) -> None:
        """Writes the figures of a round, and its plan."""
        if self._job is None:
            return
        self._step += entry.num_steps
        figures = {f"hvd_dbs/{name}": one for name, one in job_figures(self._job, entry).items()}
        for name, row in rank_figures(entry, scores).items():
            figures |= {f"hvd_dbs_{name}/{key}": value for key, value in _lines(row)}
        values = [_scalar(tag, value) for tag, value in figures.items() if np.isfinite(value)]
        if entry.changed:
            values.append(_text("hvd_dbs/plans", f"{list(entry.plan)}: {entry.reason}"))
        self._write(values)

    def on_event(self, event: RankEvent) -> None:
        """Writes what happened."""
        self._write([_text("hvd_dbs/events", event.text)])

    def on_end(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _write(self, values: list[Summary.Value]) -> None:
        """All at once: a call for each takes several milliseconds of a round's processor time."""
        with tf.device("CPU"), self._opened().as_default():
            tf.summary.experimental.write_raw_pb(
                Summary(value=values).SerializeToString(), step=self._step
            )

    def _opened(self) -> tf.summary.SummaryWriter:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        return self._writer

    def __repr__(self) -> str:
        return f"TensorBoard({self._log_dir!r})"


def _lines(row: object) -> list[tuple[str, float]]:
    """What is drawn of a figure of each rank."""
    values = np.asarray(row, dtype=np.float64)
    if len(values) <= _MOST_RANKS:
        return [(f"rank_{rank}", value) for rank, value in enumerate(values.tolist())]
    known = values[np.isfinite(values)]
    if not known.size:
        return []
    least, median, most = np.percentile(known, [0, 50, 100]).tolist()
    return [("least", least), ("median", median), ("most", most)]


def _scalar(tag: str, value: float) -> Summary.Value:
    """What `tf.summary.scalar` writes, which needs the package `tensorboard`."""
    plugin = SummaryMetadata.PluginData(plugin_name="scalars")
    metadata = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_SCALAR)
    tensor = TensorProto(dtype=DT_FLOAT, tensor_shape={}, float_val=[value])
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def _text(tag: str, text: str) -> Summary.Value:
    """What `tf.summary.text` writes, likewise."""
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    metadata = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_TENSOR)
    tensor = TensorProto(dtype=DT_STRING, tensor_shape={}, string_val=[text.encode()])
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
