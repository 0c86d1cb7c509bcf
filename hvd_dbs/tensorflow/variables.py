"""Variables of TensorFlow and of Keras 3 alike, and how all ranks get those of one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.rank_names import name_ranks

_SCOPE = "hvd_dbs.broadcast/"
"""With the slash: the same in every name scope that a caller is in."""

_SENT_AS_IT_IS = {
    *(tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64),
    *(tf.float16, tf.float32, tf.float64, tf.bool),
}
"""The types that Horovod broadcasts; others are sent as bytes."""

_MAX_ELEMENTS = 2**27
"""In one message: MPI counts bytes in 32 bits."""


def tensorflow_variable(variable: Any) -> Any:
    """What a Keras 3 variable keeps its value in; anything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    inplace: bool = False,
) -> Any:
    """Sets variables to the values that they have on one rank. Collective.

    Variables are matched by their place in the list, not by name: names hold counters of Keras,
    which differ where one rank has built another model before. All are in flight at once.

    Args:
        variables: Those to be set on all other ranks, such as `model.variables`; of TensorFlow or
            Keras 3, in the same order, shapes and types on all ranks.
        root_rank: The rank whose values all ranks get.
        process_set: The ranks that take part.
        inplace: Whether to save memory by sending one variable after the other.

    Returns:
        None; in a graph of TensorFlow 1 the operation to run.

    Raises:
        ValueError: If there are none, as in a model that is not built yet, or `root_rank` is no
            rank; on all ranks, if they differ in number, shapes or types of the variables, or in
            the root rank, which in a `tf.function` is a `tf.errors.InvalidArgumentError`.
    """
    given = list(variables)
    plain = [tensorflow_variable(variable) for variable in given]
    if not tf.executing_eagerly() and not tf.inside_function():
        return hvd.broadcast_variables(plain, root_rank, process_set, inplace)
    checked = _require_alike(
        [_described(one, getattr(one, "path", one.name)) for one in given], root_rank, process_set
    )
    if not given:
        raise ValueError(
            "broadcast_variables was given no variables, so ranks would train different models. "
            "Build the model first: call it on a batch, or begin it with keras.Input."
        )
    if not 0 <= root_rank < hvd.size():
        raise ValueError(
            f"root_rank={root_rank} is no rank of this job. Give one from 0 to {hvd.size() - 1}."
        )

    def broadcast_all() -> None:
        previous: list[tf.Operation] = []
        for i, variable in enumerate(plain):
            with tf.control_dependencies([*checked, *previous]), tf.name_scope(_SCOPE):
                value = _broadcast(tf.convert_to_tensor(variable), str(i), root_rank, process_set)
                assigned = variable.assign(value, read_value=False)
            previous = [assigned] if inplace else []

    _in_function(broadcast_all)
    return None


def broadcast_global_variables(root_rank: int) -> Any:
    """Horovod's operation for graphs of TensorFlow 1, which know their variables.

    Args:
        root_rank: The rank whose values all ranks get.

    Returns:
        The operation to run in a session.

    Raises:
        RuntimeError: In TensorFlow 2, eagerly or in a `tf.function`, which know none.
    """
    if tf.executing_eagerly() or tf.inside_function():
        raise RuntimeError(
            "broadcast_global_variables is for graphs of TensorFlow 1: TensorFlow 2 keeps no list "
            "of variables. Use hvd.broadcast_variables(model.variables, root_rank=0), or in fit "
            "hvd.callbacks.BroadcastGlobalVariablesCallback(0)."
        )
    return hvd.broadcast_global_variables(root_rank)


def broadcast_arrays(arrays: Sequence[NDArray[Any]], root_rank: int) -> list[NDArray[Any]]:
    """The arrays of one rank on all ranks, matched by their place in the list. Collective.

    Args:
        arrays: In the same order, shapes and types on all ranks.
        root_rank: The rank whose values all ranks get.

    Raises:
        ValueError: On all ranks, if they differ in number, shapes or types of the arrays.
    """
    everybody = hvd.global_process_set
    with tf.device("CPU"):
        tensors = [tf.convert_to_tensor(array) for array in arrays]
        _require_alike([_described(tensor, "") for tensor in tensors], root_rank, everybody)

        def broadcast_all() -> list[tf.Tensor]:
            with tf.device("CPU"), tf.name_scope(_SCOPE):
                return [
                    _broadcast(tensor, str(i), root_rank, everybody)
                    for i, tensor in enumerate(tensors)
                ]

        return [np.array(value) for value in _in_function(broadcast_all)]


def _in_function(body: Callable[[], Any]) -> Any:
    """Runs `body` where each of its operations has a name of its own.

    Called eagerly, all of Horovod's operations of a kind have one name, so only one at a time can
    be under way. A new function each time, since it refers to the variables; a `partial` keeps
    TensorFlow from taking it for one function that is traced again and again.
    """
    if tf.executing_eagerly():
        return tf.function(partial(body), autograph=False)()
    return body()


def _broadcast(
    tensor: tf.Tensor, name: str, root_rank: int, process_set: hvd.ProcessSet
) -> tf.Tensor:
    if tensor.dtype not in _SENT_AS_IT_IS:
        sent = tf.bitcast(tensor, tf.uint8)
        received = _broadcast(sent, name, root_rank, process_set)
        return tf.bitcast(received, tensor.dtype)
    send = partial(hvd.broadcast, root_rank=root_rank, process_set=process_set)
    num_elements = tensor.shape.num_elements()
    if num_elements == 0:
        return tensor
    if num_elements is None or num_elements <= _MAX_ELEMENTS:
        return send(tensor, name=name)
    flat = tf.reshape(tensor, [-1])
    starts = range(0, num_elements, _MAX_ELEMENTS)
    parts = [send(flat[start : start + _MAX_ELEMENTS], name=f"{name}.{start}") for start in starts]
    return tf.reshape(tf.concat(parts, 0), tensor.shape)


def _described(value: Any, name: str) -> str:
    dtype = tf.as_dtype(value.dtype).name
    shape = str(tuple(value.shape)) if tf.TensorShape(value.shape).rank is not None else "any shape"
    return f"{dtype} {shape}\t{name}"


def _require_alike(
    layout: Sequence[str], root_rank: int, process_set: hvd.ProcessSet
) -> list[tf.Operation]:
    """Checks that all ranks are about to broadcast the same.

    Args:
        layout: What this rank has: each variable's type and shape, a tab, its name.
        root_rank: As given to this rank.
        process_set: The ranks that take part.

    Returns:
        In a graph, what has to come before the first broadcast.

    Raises:
        ValueError: On all ranks, if they do not.
    """
    text = "\n".join([str(root_rank), *layout])
    compared = "\n".join([str(root_rank), *(line.partition("\t")[0] for line in layout)])
    digest = np.frombuffer(hashlib.sha256(compared.encode()).digest(), np.uint8)

    def gathered(row: NDArray[np.uint8], name: str) -> tf.Tensor:
        with tf.device("CPU"), tf.name_scope(_SCOPE):
            return hvd.allgather(tf.constant(row), name=name, process_set=process_set)

    def compare(digests: tf.Tensor) -> None:
        if len({bytes(row) for row in np.reshape(digests, [-1, digest.size])}) <= 1:
            return
        # All ranks have the same digests, so all ranks are here.
        data = np.frombuffer(text.encode() + b"\0", np.uint8)
        rows = bytes(np.asarray(_in_function(partial(gathered, data, "layouts")))).split(b"\0")
        ranks = process_set.ranks or range(hvd.size())
        raise ValueError(_difference([row.decode() for row in rows[:-1]], list(ranks)))

    digests = _in_function(partial(gathered, digest, "layout"))
    if tf.executing_eagerly():
        compare(digests)
        return []
    with tf.device("CPU"):
        return [tf.py_function(compare, [digests], [])]


def _difference(texts: Sequence[str], ranks: Sequence[int]) -> str:
    """What differs between ranks, in words."""
    tables = [text.split("\n") for text in texts]
    if len({table[0] for table in tables}) > 1:
        roots = _by_rank([f"root_rank={table[0]}" for table in tables], ranks)
        return f"A broadcast was given {roots}. Give it the same root_rank on every rank."
    tables = [table[1:] for table in tables]
    counts = _by_rank([f"{len(table)} variables" for table in tables], ranks)
    for i in range(max(map(len, tables))):
        lines = [table[i] if i < len(table) else "missing" for table in tables]
        if len({line.partition("\t")[0] for line in lines}) > 1:
            break
    values = _by_rank([line.rstrip("\t").replace("\t", " ") for line in lines], ranks)
    return (
        f"Ranks have different variables to broadcast ({counts}): number {i} is {values}. Build "
        f"and compile the same model on every rank, and give its variables in the same order."
    )


def _by_rank(values: Sequence[str], ranks: Sequence[int]) -> str:
    ranks_by_value: dict[str, list[int]] = {}
    for value, rank in zip(values, ranks, strict=True):
        ranks_by_value.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {name_ranks(on)}" for value, on in ranks_by_value.items())
