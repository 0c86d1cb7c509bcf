"""The journal of a running job. Run on 3 ranks."""

from __future__ import annotations

import csv
import gc
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.comm import agreement
from hvd_dbs.job.journal import read_journal
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
from tests.mpi.together import captured, new_folder, on_last_rank, shared

B = 16


def _new_path():
    """A file of rank 0, in a folder of its own; the others would not find it."""
    return new_folder() / "run.jsonl"


def _train(balancer, epochs=3, **options):
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(80), shuffle_seed=SEED), epochs=epochs, **options)
    return net


def check_every_round_of_a_training_is_in_its_journal():
    path = _new_path()
    balancer = hvd.Balancer(B, scripted(some_plans(B)), journal=path)
    even = balancer.plan.batch_sizes
    _train(balancer)
    hosts = agreement.allgather_text(hvd_collective(), socket.gethostname())
    if hvd.rank() != 0:
        return
    (part,), num_damaged = read_journal(path)
    assert num_damaged == 0
    assert (list(part.job.hosts), part.job.strategy) == (hosts, "scripted")
    assert part.job.global_batch_size == B
    assert [(entry.epoch, entry.step) for entry in part.rounds] == [(0, 5), (1, 5), (2, 5)]
    plans = [entry.plan for entry in part.rounds]
    assert plans == some_plans(B)[:3]
    assert [entry.plan_before for entry in part.rounds] == [even, *plans[:2]]
    for entry in part.rounds:
        assert entry.batch_sizes == entry.plan_before and entry.num_steps == 5
        assert entry.steps_ahead >= 1
        assert all(0 < seconds < 60 for seconds in entry.busy_seconds)
        assert 0 < entry.step_seconds < 60 and entry.reason


def check_a_job_that_never_decides_is_measured_at_the_end_of_each_epoch():
    path = _new_path()
    _train(hvd.Balancer(B, "even", journal=path))
    if hvd.rank() == 0:
        (part,), _ = read_journal(path)
        assert [entry.epoch for entry in part.rounds] == [0, 1, 2]
        assert all(0 < s < 60 for entry in part.rounds for s in entry.busy_seconds)
        assert not any(entry.changed for entry in part.rounds)


def check_decisions_within_epochs_are_in_the_journal():
    path = _new_path()
    balancer = hvd.Balancer(B, "lb_bsp_cpu", every=2, journal=path)
    _train(balancer)
    if hvd.rank() == 0:
        (part,), _ = read_journal(path)
        assert len(part.rounds) >= 5
        # The steps of 15 up to where the last round was begun, each in one round.
        last = part.rounds[-1]
        assert 5 * last.epoch + last.step - 1 <= sum(entry.num_steps for entry in part.rounds) <= 15
        assert all(sum(entry.plan) == sum(entry.batch_sizes) == B for entry in part.rounds)
        before = part.rounds[0].plan_before
        for entry in part.rounds:
            assert entry.plan_before == before
            before = entry.plan


def check_another_global_batch_size_is_another_part():
    path = _new_path()
    balancer = hvd.Balancer(B, "dbs", journal=path)
    _train(balancer, epochs=2)
    balancer.resize(2 * B)
    _train(balancer, epochs=1)
    if hvd.rank() == 0:
        parts, _ = read_journal(path)
        assert [part.job.global_batch_size for part in parts] == [B, 2 * B]
        assert [len(part.rounds) for part in parts] == [2, 1]


def check_a_journal_changes_nothing_of_what_is_learned():
    for journal in (_new_path(), "/dev/full"):  # A full disk, neither.
        with captured("hvd_dbs") as records:
            given = _train(hvd.Balancer(B, scripted(some_plans(B)), journal=journal))
        warnings = [text for record in records if "journal" in (text := record.getMessage())]
        assert len(warnings) == (journal == "/dev/full" and hvd.rank() == 0)
        expected = _train(hvd.Balancer(B, scripted(some_plans(B))))
        np.testing.assert_allclose(flat(given), flat(expected), atol=1e-6)


def check_the_threads_of_balancers_that_are_gone_have_ended():
    before = set(threading.enumerate())
    for _ in range(3):
        balancer = hvd.Balancer(B, "even", journal=_new_path())
        balancer.dataset(images(80))
        evaluated = balancer.dataset(np.arange(80), training=False)
        mine = list(evaluated.unbatch().as_numpy_iterator())
        balancer.loop.begin_training()
        balancer.loop.end_training()
    assert hvd.rank() != 0 or set(threading.enumerate()) - before
    del balancer
    limit = time.monotonic() + 60
    while (left := set(threading.enumerate()) - before) and time.monotonic() < limit:
        gc.collect()
        time.sleep(0.01)
    assert not left, left
    assert list(evaluated.unbatch().as_numpy_iterator()) == mine  # It can still be read.


def check_a_journal_that_cannot_be_is_an_error_on_all_ranks():
    path = _new_path().parent / "missing" / "run.jsonl"
    with pytest.raises(ValueError, match=r"run\.jsonl' cannot be written to: No such file"):
        hvd.Balancer(B, journal=path)
    with pytest.raises(TypeError, match="journal=7; expected the path of a file"):
        hvd.Balancer(B, journal=7)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="there is a journal differs between ranks: False on"):
            hvd.Balancer(B, journal=on_last_rank(_new_path(), None))
        # Whoever is not rank 0 writes nothing, so its path may be any.
        hvd.Balancer(B, journal=on_last_rank("/no/such/folder/run.jsonl", path.parents[1] / "a"))


def check_a_slow_pipeline_is_named_in_the_journal():
    path = _new_path()
    balancer = hvd.Balancer(B, "even", journal=path)
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(80), shuffle_seed=SEED)

    def late(x, y):
        time.sleep(0.2)
        return x, y

    if hvd.rank() == hvd.size() - 1:
        types = [one.dtype for one in dataset.element_spec]
        shapes = [one.shape for one in dataset.element_spec]

        def slow(x, y):
            given = tf.numpy_function(late, [x, y], types)
            return tuple(tf.ensure_shape(*one) for one in zip(given, shapes, strict=True))

        dataset = dataset.map(slow)
    fit(net, balancer, dataset, epochs=2)
    if hvd.rank() == 0:
        (part,), _ = read_journal(path)
        *others, last = part.rounds[-1].input_seconds
        assert 0.15 < last <= part.rounds[-1].busy_seconds[-1]
        assert all(seconds < 0.1 for seconds in others)
        assert all(faults >= 0 for faults in part.rounds[-1].page_faults)


def check_epochs_have_figures_that_all_ranks_know_and_may_act_on():
    path = _new_path().with_name("log.csv")
    keys = {f"hvd_dbs/{name}" for name in ("efficiency", "waiting", "step_seconds")}
    for is_first in (True, False):  # Before MetricAverageCallback, or after it.
        balancer = hvd.Balancer(B, "even")
        net = model()
        compile_model(net, sgd(balancer))
        steps = hvd.callbacks.DynamicBatchSizeCallback(balancer)
        average = hvd.callbacks.MetricAverageCallback()
        # Efficiency never rises by 2, so training stops after two epochs, on all ranks.
        stop = keras.callbacks.EarlyStopping(
            "hvd_dbs/efficiency", min_delta=2, patience=1, mode="max"
        )
        writes = [keras.callbacks.CSVLogger(str(path))] if hvd.rank() == 0 else []
        history = net.fit(
            balancer.dataset(images(80), shuffle_seed=SEED),
            epochs=5,
            verbose=0,
            shuffle=False,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                *((steps, average) if is_first else (average, steps)),
                stop,
                *writes,
            ],
        )
        assert history.epoch == [0, 1]
        figures = {name: history.history[name] for name in keys}
        assert all(0 < value <= 1 for value in figures["hvd_dbs/efficiency"])
        assert shared(repr(sorted(figures.items()))) == repr(sorted(figures.items()))
        if hvd.rank() == 0:
            assert keys <= set(next(csv.reader(path.open())))


def check_prometheus_asks_during_a_job_and_finds_nothing_after_it():
    observer = hvd.observers.Prometheus(port=0)
    balancer = hvd.Balancer(B, "even")
    seen, ports = [], []

    class Scrape(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if observer.port is None:
                return
            ports.append(observer.port)
            end = time.monotonic() + 30  # It is written beside the training.
            while f"hvd_dbs_rounds_total {epoch + 1}" not in "".join(seen[-1:]):
                assert time.monotonic() < end
                url = f"http://127.0.0.1:{observer.port}/metrics"
                seen.append(urllib.request.urlopen(url, timeout=30).read().decode())

    balancer.observe(observer)
    net = model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(80), shuffle_seed=SEED)
    fit(net, balancer, dataset, callbacks=[Scrape()] if hvd.rank() == 0 else [])
    if hvd.rank() != 0:
        assert not seen  # Rank 0 alone shows them.
        return
    ranks = re.findall(
        r'hvd_dbs_rank_busy_seconds{rank="(\d+)",host="[^"]+"} [0-9.e-]+$', seen[-1], re.M
    )
    assert ranks == [str(rank) for rank in range(hvd.size())]
    assert "hvd_dbs_steps_total 15" in seen[-1]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=30)
