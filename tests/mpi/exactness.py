"""A case of training that equals one process, in one line: `check_name = exact(model, data)`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

import hvd_dbs.keras as hvd
from hvd_dbs.sampling import EpochOrder, num_steps
from tests.mpi.problems import SEED, fit, hvd_collective, scripted, some_plans

B = 16
NUM_SAMPLES = 65  # Of the fifth step one rank alone has a sample.
EPOCHS = 3


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01)


def exact(
    build: Callable[[], keras.Model],
    data: Callable[[], Any],
    optimizer: Callable[[], keras.optimizers.Optimizer] = adam,
    *,
    compiled: Callable[..., None] | None = None,
    floatx: str = "float64",
    policy: str | None = None,
    tolerance: float = 1e-10,
    fit_options: dict[str, Any] | None = None,
    transform: Callable[[Any], Any] = lambda dataset: dataset,
    bounds: Callable[[], dict[str, Any]] = dict,
    **compile_options: Any,
) -> Callable[[], None]:
    """A check: 15 steps on uneven ranks, with plans that change, equal those of one process.

    In float64, so that what is compared is the arithmetic and not its rounding: optimizers such as
    Adam make steps of full length of gradients that are nothing but rounding.

    Args:
        build: Makes the model, from the same seed each time.
        data: Makes the arrays, in any structure; `NUM_SAMPLES` samples.
        optimizer: Makes the optimizer.
        compiled: Compiles the model instead of `compile`; gets it and a function that makes an
            optimizer distributed, or leaves it.
        floatx: Type of weights and computing.
        policy: A policy of mixed precision; None: none.
        tolerance: Most that a weight or a reported number may differ by.
        fit_options: More arguments of `fit`.
        transform: Follows `balancer.dataset`, and the batches of one process.
        bounds: Makes more arguments of the balancer, such as `micro_batch_size`.
        **compile_options: Loss and metrics.
    """

    def compile_for(net: keras.Model, distributed: Callable[[Any], Any]) -> None:
        keras.utils.set_random_seed(3)
        if compiled is not None:
            compiled(net, distributed)
        else:
            net.compile(distributed(optimizer()), **compile_options)

    def check() -> None:
        with _precision(floatx, policy or floatx):
            strategy = os.environ.get("EXACTNESS_STRATEGY")
            every = None if strategy else 2  # Plans change every second step.
            plans = strategy or scripted(some_plans(B))
            balancer = hvd.Balancer(B, plans, every=every, **bounds())
            net = build()
            compile_for(net, lambda one: hvd.DistributedOptimizer(one, balancer=balancer))
            dataset = transform(balancer.dataset(data(), shuffle_seed=SEED))
            history = fit(net, balancer, dataset, EPOCHS, **(fit_options or {})).history
            found = _numbers(net, history)
            if hvd.rank() == 0:
                one = build()
                compile_for(one, lambda optimizer: optimizer)
                expected = _numbers(one, _one_process(one, data(), transform, fit_options))
            else:
                expected = {name: np.zeros_like(value) for name, value in found.items()}
            for name, value in found.items():
                wanted = hvd_collective().broadcast(np.asarray(expected.get(name), np.float64))
                np.testing.assert_allclose(
                    value, wanted, atol=tolerance, rtol=tolerance, err_msg=name
                )

    return check


def _numbers(net: keras.Model, history: dict[str, list[float]]) -> dict[str, Any]:
    weights = {
        f"{i} {v.name}": v.numpy().astype(np.float64).ravel() for i, v in enumerate(net.weights)
    }
    learnt = {name: values for name, values in history.items() if not name.startswith("hvd_dbs/")}
    return weights | {name: np.asarray(values, np.float64) for name, values in learnt.items()}


def _one_process(
    net: keras.Model,
    arrays: Any,
    transform: Callable[[Any], Any],
    fit_options: dict[str, Any] | None,
) -> dict[str, list[float]]:
    import tensorflow as tf

    history: dict[str, list[float]] = {}
    options = {k: v for k, v in (fit_options or {}).items() if k == "class_weight"}
    for epoch in range(EPOCHS):
        order = EpochOrder(NUM_SAMPLES, SEED, epoch).indices(0, NUM_SAMPLES)
        ordered = keras.tree.map_structure(lambda a, order=order: a[order], arrays)
        dataset = transform(tf.data.Dataset.from_tensor_slices(ordered).batch(B))
        assert len(dataset) == num_steps(NUM_SAMPLES, B)
        logs = net.fit(dataset, epochs=1, shuffle=False, verbose=0, **options).history
        for name, values in logs.items():
            history.setdefault(name, []).extend(values)
    return history


@contextmanager
def _precision(floatx: str, policy: str) -> Any:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
