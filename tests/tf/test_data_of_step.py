"""Which tensors a step has to wait for before it begins."""

from __future__ import annotations

import tensorflow as tf

from hvd_dbs.tensorflow.gradient_reducer import _data_of_step


def found_in(function, *arguments):
    """Names of what a traced function has to wait for, as far as it is traced when it asks."""
    names = []

    @tf.function
    def step(*given):
        result = function(*given)
        graph = tf.compat.v1.get_default_graph()
        names.extend(tensor.op.type for tensor in _data_of_step(graph, [result]))
        return result

    step(*arguments)
    return names


def test_what_the_step_is_given():
    weights = tf.Variable([1.0, 2.0])
    batch = tf.constant([[1.0, 2.0]]), tf.constant([1])
    found = found_in(lambda x, y: tf.reduce_sum(x * weights) + tf.cast(y[0], tf.float32), *batch)
    assert found == ["Placeholder", "Placeholder"]


def test_what_the_step_reads_itself():
    iterator = iter(tf.data.Dataset.range(5).batch(2))
    assert found_in(lambda: tf.reduce_sum(next(iterator))) == ["IteratorGetNext"]


def test_nothing_where_it_is_given_the_gradients():
    assert found_in(lambda gradient: gradient, tf.constant([1.0])) == []


def test_nothing_where_the_data_come_from_elsewhere():
    data = tf.Variable([1.0, 2.0])
    assert found_in(lambda: tf.reduce_sum(data)) == []
