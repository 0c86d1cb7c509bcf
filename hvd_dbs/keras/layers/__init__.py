"""Keras layers that compute over all ranks."""

from hvd_dbs.keras.layers.sync_batch_normalization import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
