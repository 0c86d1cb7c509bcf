"""Sources of samples, and tf.data pipelines over the windows of `sampling`."""

from hvd_dbs.data.source import Source

__all__ = ["Source"]
