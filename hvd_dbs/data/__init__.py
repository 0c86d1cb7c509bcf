"""Sources of samples, and tf.data pipelines over the windows of `sampling`."""

from hvd_dbs.data.random_access import RandomAccess
from hvd_dbs.data.source import Source
from hvd_dbs.data.stream import Stream
from hvd_dbs.data.tfrecords import TFRecords

__all__ = ["RandomAccess", "Source", "Stream", "TFRecords"]
