"""How many samples fit into memory: the search, and a process with a limit."""

from __future__ import annotations

import re

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.job.memory_bounds import MemoryBounds, largest_that_fits, within_memory
from hvd_dbs.keras.model_fingerprint import model_fingerprint
from tests.jobs import python, run_job


@given(st.integers(0, 5000), st.integers(1, 300), st.integers(1, 5000))
def test_the_largest_number_is_found_to_a_part_of_it(limit, start, most):
    tried = []

    def fits(number):
        tried.append(number)
        return number <= limit

    found = largest_that_fits(fits, start, most)
    assert found <= min(limit, most)
    assert found >= min(limit, most) - max(1, limit / 32)
    assert all(1 <= number <= most for number in tried)
    assert all(later <= max(start, 2 * max(tried[:i])) for i, later in enumerate(tried[1:], 1))
    assert len(tried) <= 32


def test_what_was_found_bounds_the_plan():
    memory = MemoryBounds(is_wanted=True)
    bounds = Bounds.of(1, minimum=4, multiple_of=4)

    def bounded(given=bounds):
        return within_memory(given, memory.by_rank(AloneCollective()))

    assert bounded() == bounds
    memory.note_found(100, 100)
    assert bounded() == bounds
    memory.note_found(100, 1000)
    assert bounded().maximum == (95,)
    assert bounded(Bounds.of(1, maximum=60)).maximum == (60,)
    assert memory.note_lack(60) == 54
    assert bounded().maximum == (54,)
    memory.note_lack(4)
    with pytest.raises(ValueError, match="memory of rank 0 holds a step of 3 samples, but its"):
        bounded()


def test_what_fits_is_searched_again_where_a_rank_may_get_more():
    memory = MemoryBounds(is_wanted=True)
    memory.begin_training("m")
    assert not memory.is_known(1)
    memory.note_found(64, 64)
    assert memory.is_known(64) and memory.is_known(10) and not memory.is_known(65)
    memory.note_found(1000, 4096)
    assert memory.is_known(4096) and memory.is_known(10**6)


def test_what_an_earlier_training_found_is_not_searched():
    memory = MemoryBounds(is_wanted=True)
    memory.begin_training("m")
    memory.note(48)
    assert memory.is_known(4096) and memory.most == 48


def test_what_was_found_is_of_one_model():
    for found in (100, 1000):
        memory = MemoryBounds(is_wanted=True)
        memory.begin_training("frozen")
        memory.note_found(found, 1000)
        memory.begin_training("frozen")
        assert memory.is_known(1000)
        memory.begin_training("all of it")
        assert not memory.is_known(1) and memory.most is None


def test_a_model_of_which_other_weights_are_trained_is_another_one():
    net = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    whole = model_fingerprint(net)
    net.layers[0].trainable = False
    assert model_fingerprint(net) != whole


LIMITED = """
import gc, resource
import keras, numpy as np, psutil
import hvd_dbs.keras as hvd

hvd.init()
x, y = np.zeros((8192, 50), np.float32), np.zeros((8192, 1), np.float32)

def leave(megabytes):  # Each training gets the same, whatever is left of those before it.
    gc.collect()
    limit = psutil.Process().memory_info().vms + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

def train(num_samples, most):
    balancer = hvd.Balancer(num_samples, "even", max_batch_size=most)
    wide = keras.layers.Dense(20000, "tanh")
    net = keras.Sequential([keras.layers.Input((50,)), wide, keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    net.compile(optimizer, "mse")
    data = balancer.dataset((x[:num_samples], y[:num_samples]))
    net.fit(data, verbose=0, shuffle=False, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
    ])

train(64, "auto")  # Threads are there.
leave(800)
try:
    train(8192, "auto")
except ValueError as error:
    print("FOUND", str(error).splitlines()[0])
    found = int(str(error).split("(")[1].split(")")[0].strip(","))
leave(800)
train(int(found / 1.1), None)
print("IT TRAINS")
leave(800)
try:
    train(int(found / 0.9), None)
except MemoryError as error:
    print("TOO MUCH:", error)
"""


def test_a_process_with_a_limit_finds_its_bound():
    """Within 10 % of the most samples that training holds: it lies between the last two."""
    # oneDNN's matrix product on a CPU ends the process where there is no memory.
    job = run_job(python("-c", LIMITED), 180, {"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert job.exit_code == 0, job.output
    found = int(re.search(r"FOUND max_batch_size=\((\d+)", job.output)[1])
    assert 64 < found < 8192
    assert "IT TRAINS" in job.output
    samples = int(found / 0.9)
    message = f"TOO MUCH: Rank 0 \\(host .*\\) has run out of memory in a step of {samples} samples"
    assert re.search(message + ": OOM when allocating tensor with shape", job.output)
    assert f": {int(0.9 * samples)}; or give micro_batch_size" in job.output
