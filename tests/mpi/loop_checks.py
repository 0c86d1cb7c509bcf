"""Loops and training steps of one's own. Run on 3 ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow as hvd_tensorflow
from tests.mpi.problems import (
    SEED,
    OneProcess,
    compile_model,
    fit,
    flat,
    images,
    model,
    one_process_run,
    scripted,
    sgd,
    some_plans,
)

B = 16


def check_a_loop_of_ones_own_equals_one_process():
    """As docs/own_loops.md shows it."""
    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    net = model(seed=1 + hvd.rank())
    hvd_tensorflow.broadcast_variables(net.variables, root_rank=0)
    optimizer, loss = sgd(balancer), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dataset = balancer.dataset(arrays, shuffle_seed=SEED)

    @tf.function(reduce_retracing=True)
    def train_step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, net(x, training=True)) + sum(net.losses)
        gradients = tape.gradient(value, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    plans = set()
    for epoch in balancer.epochs(dataset, 3):
        for x, y in epoch:
            train_step(x, y)
            plans.add(balancer.loop.agreed_plan)
    assert len(plans) > 1 or hvd.size() == 1
    expected, _ = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def _train_step(net, optimizer, x, y):
    """A step of a loop, without a graph."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        value = loss(y, net(x, training=True)) + sum(net.losses)
    variables = net.trainable_variables
    optimizer.apply(tape.gradient(value, [v.value for v in variables]), variables)


def check_all_ranks_train_the_same_epochs_or_get_the_same_error():
    arrays, net = images(70), model()
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    optimizer, dataset = sgd(balancer), balancer.dataset(arrays, shuffle_seed=SEED)
    for numbers, error, match in (
        ((3 + hvd.rank(),), ValueError, "num_epochs differs between ranks"),
        ((3, hvd.rank()), ValueError, "initial_epoch differs between ranks"),
        ((2.5,), TypeError, "num_epochs=2.5 is a float"),
        ((3, "0"), TypeError, "initial_epoch='0' is a str"),
        ((3, -1), ValueError, "initial_epoch=-1 is negative"),
        ((-1,), ValueError, "num_epochs=-1 is negative"),
    ):
        with pytest.raises(error, match=match):
            balancer.epochs(dataset, *numbers)
    for epoch in balancer.epochs(dataset, 3):
        for batch in epoch:
            _train_step(net, optimizer, *batch)
    expected, _ = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_a_loop_that_reads_the_data_set_itself_is_an_error():
    """Its messages once named methods of balancer.loop alone."""
    balancer, net = hvd.Balancer(B, "even"), model()
    optimizer, dataset = sgd(balancer), balancer.dataset(images(2 * B))

    def train():
        for batch in dataset:
            _train_step(net, optimizer, *batch)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"balancer\.epochs\(dataset, num"):
        train()
    with pytest.raises(RuntimeError, match=r"epochs of balancer\.epochs \(for batch in epoch\)"):
        for _epoch in balancer.epochs(dataset, 1):
            train()
    balancer.loop.end_training()


def check_an_endless_stream_ends_with_its_steps():
    x, y = images(2 * B)
    balancer = hvd.Balancer(B, "even")
    endless = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    dataset = balancer.dataset(hvd.data.Stream(endless, steps_per_epoch=3))
    steps = {}
    for epoch in balancer.epochs(dataset, 2):
        steps[epoch.number] = sum(1 for _ in epoch)
        with pytest.raises(RuntimeError, match="read a second time"):
            next(iter(epoch))
    assert steps == {0: 3, 1: 3}


def check_a_loop_left_by_break_or_an_exception_goes_on_where_it_was():
    arrays, net = images(70), model()
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    optimizer = sgd(balancer)
    for epoch in balancer.epochs(balancer.dataset(arrays, shuffle_seed=SEED), 3):
        for step, batch in enumerate(epoch):
            _train_step(net, optimizer, *batch)
            if (epoch.number, step) == (1, 2):
                break
        if epoch.number == 1:
            break
    balancer.loop.end_training()
    state = balancer.state_dict()
    for _ in range(2):
        with pytest.raises(KeyError, match="of the loop"):
            for epoch in balancer.epochs(balancer.dataset(arrays, shuffle_seed=SEED), 1):
                for _batch in epoch:
                    raise KeyError("of the loop")
    scratch, scratch_optimizer = model(), sgd(balancer)
    for epoch in balancer.epochs(balancer.dataset(arrays, shuffle_seed=SEED), 2):
        for batch in epoch:
            _train_step(scratch, scratch_optimizer, *batch)
            break
    again = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    dataset = again.dataset(arrays, shuffle_seed=SEED)
    again.load_state_dict(state)
    other = sgd(again)
    other.build(net.trainable_variables)
    other.load_own_variables({f"{i}": v.value for i, v in enumerate(optimizer.variables)})
    numbers = []
    for epoch in again.epochs(dataset, 3):
        numbers.append(epoch.number)
        for batch in epoch:
            _train_step(net, other, *batch)
    assert numbers == [1, 2]
    expected, _ = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_a_training_goes_on_after_a_pause():
    """Where ranks do not come and go, a pause closed their collective for good."""
    arrays, net = images(70), model()
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=1)
    optimizer = sgd(balancer)
    for last_step in (2, 1, None):
        for epoch in balancer.epochs(balancer.dataset(arrays, shuffle_seed=SEED), 3):
            for step, batch in enumerate(epoch):
                _train_step(net, optimizer, *batch)
                if step == last_step:  # A round is under way.
                    break
            if last_step is not None:
                break
        balancer.pause()
        if last_step is not None:
            balancer.rejoin(balancer.state_dict(), B)
    expected, _ = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)
    balancer.pause()
    plans = set()
    for epoch in balancer.epochs(balancer.dataset(arrays, shuffle_seed=SEED), 1):
        for batch in epoch:
            _train_step(net, optimizer, *batch)
            plans.add(balancer.loop.agreed_plan)
    assert len(plans) > 1 or hvd.size() == 1


class TwoOptimizers(keras.Sequential):
    """The first layer learns twice from each batch, with an optimizer of its own."""

    def train_step(self, data):
        x, y = data
        first, others = self.trainable_variables[:2], self.trainable_variables[2:]
        own, common = (self.own, first), (self.optimizer, others)
        for optimizer, variables in (own, own, common):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return self.compute_metrics(x, y, self(x), None)


def check_any_number_of_optimizers_in_a_step_equals_one_process():
    """Once, the second one in a step got the weight of the next step's samples."""
    arrays = images(70)
    for every, strategy in (("epoch", scripted(some_plans(B))), (2, scripted(some_plans(B)))):
        balancer = hvd.Balancer(B, strategy, every=every)
        net = TwoOptimizers(model().layers)
        net.own = sgd(balancer)
        compile_model(net, sgd(balancer))
        history = fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED)).history
        plain = TwoOptimizers(model().layers)
        plain.own = keras.optimizers.SGD(0.05, momentum=0.9)
        expected, expected_history = one_process_run(plain, arrays, B)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        np.testing.assert_allclose(history["accuracy"], expected_history["accuracy"], atol=1e-5)
    compile_model(net, net.optimizer, steps_per_execution=2)
    with pytest.raises(ValueError, match="reduced 6 times in the first 2 steps"):
        fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED))


def check_a_loop_may_apply_its_optimizer_now_and_then():
    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    net, plain = model(), model()
    optimizer = sgd(balancer)
    compile_model(plain, keras.optimizers.SGD(0.05, momentum=0.9))
    dataset, batches = balancer.dataset(arrays, shuffle_seed=SEED), OneProcess(arrays, B)
    with pytest.raises(RuntimeError, match="begin_training"):
        balancer.loop.begin_epoch(0)
    balancer.loop.begin_training()
    for batches.epoch in range(2):
        balancer.loop.begin_epoch(batches.epoch)
        for step, (x, y) in enumerate(dataset):
            if step % 3 != 0:  # The last step has fewer samples, and is applied.
                _train_step(net, optimizer, x, y)
                _train_step(plain, plain.optimizer, *batches[step])
            balancer.loop.end_steps(step + 1)
        balancer.loop.end_epoch()
    np.testing.assert_allclose(flat(net), flat(plain), atol=1e-5)
    balancer.loop.begin_epoch(2)
    for x, y in dataset.take(1):
        _train_step(net, optimizer, x, y)
    with pytest.raises(RuntimeError, match=r"call balancer\.loop\.end_steps\(step\) after each"):
        balancer.loop.end_epoch()
    balancer.loop.end_training()
