"""Faults and wrong arguments: an error on all ranks or the plan as it was, never a hang."""

from __future__ import annotations

import logging
import socket
import tempfile
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import pytest

import hvd_dbs.keras as hvd
from hvd_dbs.balancing import Plan, Strategy
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.balancing.solvers.solver import Proposal
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.windowed_mean import WindowedMean
from hvd_dbs.comm import agreement, collective
from hvd_dbs.ops.step_clock import StepTimes
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    hvd_collective,
    images,
    model,
    scripted,
    sgd,
    some_plans,
)
from tests.mpi.together import captured, on_last_rank

B = 16


def check_collective_exchanges_rows_and_texts():
    job = hvd_collective()
    rank, size = job.rank, job.size
    assert (rank, size) == (hvd.rank(), hvd.size())
    rows = job.allgather(np.array([rank, 0.5]))
    np.testing.assert_array_equal(rows, [[r, 0.5] for r in range(size)])
    np.testing.assert_array_equal(job.broadcast(np.array([rank + 7])), [7])
    assert job.allgather(np.zeros(0)).shape == (size, 0)
    texts = agreement.allgather_text(job, "ü" * rank)
    assert texts == ["ü" * r for r in range(size)]


def check_collectives_that_come_and_go_leave_few_communicators():
    """MPI has only so many, and none is freed until the job ends."""
    if hvd.size() == 1:
        pytest.skip("one rank needs no communicator")
    kept = collective.connect()
    before = num_communicators()
    for i in range(300):
        connected = collective.connect()
        if i % 100 == hvd.rank():  # Dropped later than on other ranks.
            late = connected
        if i % 100 == 0:
            rows = connected.allgather(np.array([hvd.rank(), i]))
            np.testing.assert_array_equal(rows, [[rank, i] for rank in range(hvd.size())])
    connected.close()  # It is not used again.
    np.testing.assert_array_equal(collective.connect().broadcast(np.array([hvd.rank()])), [0])
    assert num_communicators() - before < 10
    assert kept.allgather(np.array([hvd.rank()])).shape == (hvd.size(), 1)
    del late


def num_communicators():
    """About as many as there are: Open MPI numbers them by the lowest number that is free."""
    from mpi4py import MPI

    communicator = MPI.COMM_WORLD.Dup()
    number = communicator.py2f()
    communicator.Free()
    return number


def check_unequal_arguments_are_an_error_on_all_ranks():
    if hvd.size() == 1:
        pytest.skip("one rank cannot differ from another")
    with pytest.raises(ValueError, match=r"global_batch_size differs between ranks: 16 on .*; 32"):
        hvd.Balancer(on_last_rank(32, 16))
    with pytest.raises(ValueError, match="strategy differs between ranks"):
        hvd.Balancer(B, on_last_rank("even", "dbs"))
    ones = [1.0] * hvd.size()
    with pytest.raises(ValueError, match="strategy differs between ranks"):
        hvd.Balancer(B, hvd.strategies.static(on_last_rank([2.0, *ones[1:]], ones)))
    model = WindowedMean(on_last_rank(4, 8))
    with pytest.raises(ValueError, match=r"strategy differs .*WindowedMean\(window=8"):
        hvd.Balancer(B, Strategy("own", model=model, solver=EqualFinish(), every=5))
    balancer = hvd.Balancer(B)
    with pytest.raises(ValueError, match="number of samples differs between ranks: 48 on"):
        balancer.dataset(images(on_last_rank(32, 48)))
    with pytest.raises(ValueError, match="shuffle_seed differs between ranks"):
        balancer.dataset(images(48), shuffle_seed=on_last_rank(None, 3))


def check_ranks_with_another_version_are_an_error_on_all_ranks():
    if hvd.size() == 1:
        pytest.skip("one rank cannot differ from another")
    given = on_last_rank({"a": "1", "b": "2"}, {"a": "1"})
    with pytest.raises(ValueError, match=r"do not run the same code: .*a on .*; a, b on rank"):
        agreement.require_equal(hvd_collective(), given)


def check_an_error_of_one_rank_is_raised_on_all_with_its_number():
    balancer = hvd.Balancer(B)
    x, y = images(32)
    with pytest.raises(ValueError, match=r"arrays of \[31, 32\] samples") as caught:
        balancer.dataset((x, on_last_rank(y[:-1], y)))
    if hvd.size() > 1:
        assert str(caught.value).startswith(f"rank {hvd.size() - 1}: ")


def check_impossible_arguments_name_what_is_expected():
    size = hvd.size()
    for arguments, text in [
        ({"global_batch_size": 0}, f"not one sample for each .* Use at least {size}, or"),
        ({"global_batch_size": -3}, f"=-3 must not be negative.* all {size} ranks"),
        ({"global_batch_size": 2.5}, "=2.5 is a float; it must be a whole number"),
        ({"global_batch_size": "16"}, "='16' is a str; it must be a whole number"),
        ({"global_batch_size": B, "strategy": hvd.strategies.dbs}, r"Call it: strategies.dbs\(\)"),
        ({"global_batch_size": B, "strategy": "quick"}, "Known: .*dbs"),
        ({"global_batch_size": B, "strategy": "static"}, "needs ratios"),
        ({"global_batch_size": B, "strategy": 3}, "preset's name or a Strategy"),
        ({"global_batch_size": B, "every": "hour"}, "epoch"),
        ({"global_batch_size": B, "min_batch_size": 0}, "at least 1"),
        ({"global_batch_size": B, "max_batch_size": 3}, f"allows at most {3 * size} samples"),
        ({"global_batch_size": B, "max_batch_size": 0}, "below its min_batch_size"),
        ({"global_batch_size": B, "max_batch_size": [B] * (size + 1)}, f"for {size} ranks"),
        ({"global_batch_size": B, "max_batch_size": {"nobody": B}}, "no entry for host"),
        ({"global_batch_size": B, "multiple_of": 5}, "not a multiple of 5"),
        ({"global_batch_size": size - 1}, "or start fewer ranks"),
        ({"global_batch_size": size, "min_batch_size": 2}, f"at least {2 * size} samples"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            hvd.Balancer(**arguments)


def check_bounds_by_number_rank_and_host():
    host = socket.gethostname()
    for bound in (B, [B] * hvd.size(), np.full(hvd.size(), B), {host: B, "elsewhere": 1}):
        assert hvd.Balancer(B, max_batch_size=bound).plan.global_batch_size == B
    if hvd.size() > 1:
        bounds = [1] + [B] * (hvd.size() - 1)
        assert hvd.Balancer(B, max_batch_size=bounds).plan.batch_sizes[0] == 1


def check_unusable_timings_keep_the_plan_and_are_said_once():
    for broken in (float("nan"), -1.0, 0.0, float("inf"), 1e9):
        balancer = hvd.Balancer(B, "dbs")
        net = model()
        compile_model(net, sgd(balancer))
        drain = balancer.clock.drain

        def broken_drain(drain=drain, broken=broken):
            times = drain()
            busy = np.full_like(times.busy_seconds, broken)
            return replace(times, busy_seconds=busy)

        if hvd.rank() == hvd.size() - 1:
            balancer.clock.drain = broken_drain
        plan = balancer.plan
        with captured("hvd_dbs") as records:
            fit(net, balancer, balancer.dataset(images(96), shuffle_seed=SEED), epochs=3)
        assert balancer.plan == plan
        warnings = [text for text in map(logging.LogRecord.getMessage, records) if "kept" in text]
        expected = [f"no usable timing of rank {hvd.size() - 1}"] if hvd.rank() == 0 else []
        assert [text.rpartition("kept: ")[2] for text in warnings] == expected


def check_a_failing_time_model_keeps_the_plan():
    @dataclass(frozen=True)
    class Failing:
        record_size = 1

        def init(self, num_rows):
            return {}

        def update(self, state, measurement):
            raise ZeroDivisionError("on purpose")

        def record(self, state):
            raise AssertionError

        def curves(self, records):
            from hvd_dbs.balancing.curves import AffineCurves

            return AffineCurves(np.zeros(len(records)), records[:, 0])

    from hvd_dbs.balancing.solvers.proportional import Proportional

    strategy = Strategy("failing", model=Failing(), solver=Proportional(), every="epoch")
    balancer = hvd.Balancer(B, strategy)
    net = model()
    compile_model(net, sgd(balancer))
    plan = balancer.plan
    with captured("hvd_dbs") as records:
        fit(net, balancer, balancer.dataset(images(96), shuffle_seed=SEED), epochs=3)
    assert balancer.plan == plan
    assert sum("time model failed" in record.getMessage() for record in records) == 1


def check_a_broken_invariant_ends_the_job_on_all_ranks():
    @dataclass(frozen=True)
    class Wrong:
        def init(self):
            return {}

        def solve(self, state, problem, curves):
            return Proposal(Plan((1,) * hvd.size())), state  # Its sum is not B.

    strategy = Strategy("wrong", model=LastRound(), solver=Wrong(), every="epoch")
    balancer = hvd.Balancer(B, strategy)
    net = model()
    compile_model(net, sgd(balancer))
    none = np.zeros(5)
    balancer.clock.drain = lambda: StepTimes(
        np.ones(5),
        np.ones(5),
        np.full(5, float(balancer.plan.batch_sizes[hvd.rank()])),
        *(none, np.ones(5), none, none),
    )
    with pytest.raises(RuntimeError, match=r"proposed .* outside of its bounds|rank 0 says which"):
        fit(net, balancer, balancer.dataset(images(96), shuffle_seed=SEED))


def check_nobody_leaves_a_fit_while_another_has_an_exchange_under_way():
    """Who then ended its process would take MPI from the other one."""
    begun = 0.0

    class Late(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            nonlocal begun
            if hvd.rank() == 0:
                time.sleep(0.2)
            begun = time.monotonic()

    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=3)
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(64), shuffle_seed=SEED), 1, callbacks=[Late()])
    rows = hvd_collective().allgather(np.array([begun, time.monotonic()]))
    assert rows[:, 1].min() > rows[0, 0]  # One host, one clock.


def check_optimizer_arguments():
    with pytest.raises(TypeError, match="expected a Keras 3 optimizer"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(sgd(None))
    accumulating = keras.optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        hvd.DistributedOptimizer(accumulating, backward_passes_per_step=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), weights=1)
    built = keras.optimizers.SGD()
    built.build([keras.Variable(1.0)])
    with pytest.raises(ValueError, match="built already"):
        hvd.DistributedOptimizer(built)
    with pytest.raises(ValueError, match="built already"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(built))
    plain = keras.optimizers.Adam(0.3, beta_1=0.5)
    config = plain.get_config()
    accepted = hvd.DistributedOptimizer(plain, "mine", op=hvd.Average, num_groups=0)
    assert accepted is plain
    assert accepted.get_config() == {**config, "name": "mine"}
    # Plain in Keras: what is saved, copied and sent to other processes.
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(plain))
    assert type(restored) is type(deepcopy(plain)) is keras.optimizers.Adam
    inner = keras.optimizers.SGD()
    for given in (plain, hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(inner))):
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(given)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(inner)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(plain))


def check_a_saved_model_loads_in_plain_keras():
    balancer = hvd.Balancer(B)
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(48), shuffle_seed=SEED), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        net.save(path)
        loaded = keras.saving.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    np.testing.assert_array_equal(flat(loaded), flat(net))
