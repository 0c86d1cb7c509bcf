"""AutoGraph rewrites the steps that users write, and none of our functions that they call."""

from __future__ import annotations

import re

import keras
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.tensorflow import DistributedGradientTape, weighted_allreduce

_VERBOSE = 2


def optimizer(gradients, variables):
    one = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    one.build(variables)
    return lambda: one.apply(gradients, variables)


def tape(gradients, variables):
    def reduce():
        with DistributedGradientTape(tf.GradientTape(), weight=2.0) as one:
            loss = tf.reduce_sum(variables[0])
        return one.gradient(loss, [variables[0]])

    return reduce


def allreduce(gradients, variables):
    return lambda: weighted_allreduce(gradients, 1.0)


def mean(gradients, variables):
    return lambda: hvd.global_mean(gradients[0]) + hvd.global_sum(gradients[0])


PARTS = {one.__name__: one for one in (optimizer, tape, allreduce, mean)}


@pytest.mark.parametrize("made", PARTS.values(), ids=PARTS)
def test_what_a_step_calls_is_not_rewritten(made, capsys):
    hvd.init()
    variables = [keras.Variable([1.0, 2.0])]
    call = made([tf.ones(2)], variables)

    @tf.function
    def step():
        call()

    tf.autograph.set_verbosity(_VERBOSE, alsologtostdout=True)
    try:
        step()
    finally:
        tf.autograph.set_verbosity(0)
    rewritten = set(re.findall(r"(\S+) at 0x\w+> is not cached", capsys.readouterr().out))
    assert rewritten  # AutoGraph is at work.
    assert {name for name in rewritten if not name.startswith(("test_", *PARTS))} == set()
