"""Sources of samples, and tf.data pipelines over the windows of `sampling`."""

from hvd_dbs.data.random_access import RandomAccess
from hvd_dbs.data.records.tfrecords import TFRecords
from hvd_dbs.data.source import Source
from hvd_dbs.data.stream import Stream

__all__ = ["RandomAccess", "Source", "Stream", "TFRecords"]
