"""What the stack of a thread says of what it is doing."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import hvd_dbs
from hvd_dbs.watchdog.activity import Activity
from hvd_dbs.watchdog.heartbeat import LEFT, REGROUPING, WAITING


def test_what_a_thread_does():
    seen, go_on = [], threading.Event()
    ready = threading.Event()

    def some_function_of_the_users():
        seen.append(Activity())
        ready.set()
        go_on.wait(20)

    thread = threading.Thread(target=some_function_of_the_users)
    thread.start()
    ready.wait(20)
    try:
        doing, operation = seen[0].describe(in_collective=False)
        assert doing.startswith("in some_function_of_the_users (test_activity.py, line ")
        assert operation == ""
    finally:
        go_on.set()
        thread.join()


def function_of(file, name):
    """A function that calls another one, as if it were in this file."""
    names = {}
    exec(compile(f"def {name}(inside): return inside()", file, "exec"), names)
    return names[name]


def test_another_fit_is_not_the_one_that_is_watched():
    """An elastic job goes on in another call of `fit`, from the same place."""
    fit = function_of("/site-packages/keras/trainer.py", "fit")
    assert not fit(lambda: Activity().is_over)
    first = fit(Activity)
    assert fit(lambda: first.is_over)
    assert first._fit is None
    assert first.after_fit() == LEFT


def test_a_rank_that_regroups_is_known_by_its_stack():
    package = Path(hvd_dbs.__file__).parent
    wrapper = function_of(str(package / "tensorflow" / "elastic.py"), "wrapper")
    rejoin = function_of(str(package / "cluster" / "rendezvous.py"), "rejoin")
    after_fit = Activity().after_fit
    assert wrapper(partial(rejoin, after_fit)) == REGROUPING
    assert wrapper(partial(function_of("/own/train.py", "train"), after_fit)) == LEFT


def test_ranks_in_the_same_operation_name_it_alike():
    allreduce = function_of("/horovod/tensorflow/mpi_ops.py", "allreduce")
    fit = function_of("/site-packages/keras/trainer.py", "fit")
    describe = partial(Activity().describe, in_collective=True)
    assert fit(describe) == (WAITING, "the sum of gradients")
    assert fit(partial(allreduce, describe)) == (WAITING, "allreduce, called by fit (trainer.py)")


def test_a_rank_waits_where_a_function_of_the_graph_broadcasts():
    """Horovod is in no stack of Python there; both ranks once were those that others wait for."""
    package = Path(hvd_dbs.__file__).parent
    broadcast = function_of(str(package / "tensorflow" / "variables.py"), "broadcast_variables")
    callback = function_of("/own/train.py", "on_epoch_end")
    call = function_of("/site-packages/tensorflow/polymorphic_function.py", "__call__")
    fit = function_of("/site-packages/keras/trainer.py", "fit")
    describe = partial(Activity().describe, in_collective=False)
    doing = fit(partial(callback, partial(broadcast, partial(call, describe))))
    assert doing == (WAITING, "broadcast_variables, called by on_epoch_end (train.py)")
