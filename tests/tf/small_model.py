"""A small model to train, and data for it."""

from __future__ import annotations

import keras
import numpy as np

import hvd_dbs.keras as hvd

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def make_model(balancer=None):
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(hvd.DistributedOptimizer(optimizer, balancer=balancer), loss="mse")
    return model
