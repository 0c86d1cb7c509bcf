"""Sources that ranks cannot use, or that differ between them. Run on 2 ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.comm.collective import ElasticCollective
from hvd_dbs.job import session
from tests.mpi.problems import images, write_examples
from tests.mpi.together import meet, shared_folder

B = 16


def check_what_only_one_rank_cannot_read_is_an_error_on_all():
    balancer = hvd.Balancer(B, "even")
    source = hvd.data.RandomAccess([] if hvd.rank() == 0 else [1, 2])
    with pytest.raises(ValueError, match="no items"):
        balancer.dataset(source)
    items = [np.zeros(3 if hvd.rank() == 0 else 2)] * 5
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="data set differs between ranks"):
            balancer.dataset(hvd.data.RandomAccess(items))


def check_ranks_that_give_other_arrays_are_told_to_give_the_whole():
    x, y = images(70)
    rank, size = hvd.rank(), hvd.size()
    balancer = hvd.Balancer(B, "even")
    if size > 1:
        shard = tuple(array[rank::size][:20] for array in (x, y))
        for training in (True, False):
            with pytest.raises(ValueError, match=r"rank.*sample 0 .* no shard such as x\[rank::s"):
                balancer.dataset(shard, training=training)
        other = x if rank else x.astype("float64")
        with pytest.raises(ValueError, match=r"data set differs .*\(float64 .* on rank 0"):
            balancer.dataset((other, y))
        balancer.dataset((x[:20], y[:20]))
        stream = tf.data.Dataset.range(9 * size).shard(size, rank).prefetch(1)
        with pytest.raises(ValueError, match=r"of shard\(\d, 0\) on rank 0"):
            balancer.dataset(hvd.data.Stream(stream))
    balancer.dataset((x * np.float32(1 + 1e-3 * rank), y))


def check_other_arrays_are_noticed_where_ranks_that_came_alone_meet():
    (x, _), rank, size = images(70), hvd.rank(), hvd.size()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "connect_for_long", ElasticCollective)
        balancer = hvd.Balancer(B, "even")
    whole = np.roll(x, rank, axis=0)
    balancer.dataset(whole)  # Others may be training meanwhile: nobody is asked.
    if size > 1:
        with pytest.raises(ValueError, match=r"rank.*sample 0 is another one than on rank 0"):
            balancer.rejoin(balancer.state_dict(), B)
    balancer.pause()


def check_costs_that_one_rank_cannot_use_are_an_error_of_all():
    balancer = hvd.Balancer(B, "even")
    x = np.arange(40)
    last = hvd.rank() == hvd.size() - 1
    with pytest.raises(ValueError, match=r"cost\[3\] is -1.0"):
        balancer.dataset(x, cost=np.where(last & (x == 3), -1.0, 1.0))
    for options, text in (
        ({"training": False}, "an evaluation is cut by the number of samples"),
        ({"layout": "contiguous"}, 'use layout="windows"'),
    ):
        with pytest.raises(ValueError, match=text):
            balancer.dataset(x, cost=x, **options)
    endless = hvd.data.Stream(tf.data.Dataset.counter(), steps_per_epoch=3)
    with pytest.raises(ValueError, match="endless stream"):
        balancer.dataset(endless, cost=x)
    with pytest.raises(ValueError, match="Leave out one of them"):
        hvd.Balancer(2 * B * hvd.size(), "even", multiple_of=2).dataset(x, cost=x)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="cost differs between ranks"):
            balancer.dataset(x, cost=x + last)


def check_files_that_one_rank_cannot_read_are_an_error_of_all():
    with shared_folder() as folder:
        if hvd.rank() == 0:
            for name in ("whole", "cut"):
                write_examples(folder / name, *images(3))
            with (folder / "cut").open("r+b") as file:
                file.truncate((folder / "cut").stat().st_size - 5)
        meet()
        balancer = hvd.Balancer(B)
        last = hvd.size() - 1
        mine = folder / ("cut" if hvd.rank() == last else "whole")
        with pytest.raises(ValueError, match=r"cut: the record at offset \d+ is cut off"):
            balancer.dataset(hvd.data.TFRecords(mine))
        if last > 0:
            mine = folder / "whole"
            if hvd.rank() == last:
                mine = folder / "other"
                write_examples(mine, *images(3))
            with pytest.raises(ValueError, match="data set differs between ranks"):
                balancer.dataset(hvd.data.TFRecords(mine))
