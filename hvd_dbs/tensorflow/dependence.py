"""Which tensors of a step depend on its samples, read off the graph."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

_BY_SHAPE = {"Shape", "ShapeN", "Size", "ZerosLike", "OnesLike", "VariableShape"}
"""Operations whose results do not depend on the values that they are given."""

_READS = ("IteratorGetNext", "OptionalGetValue", "OptionalFromValue", "TensorListPop")
"""Beginnings of the names of operations that give a step its data."""

_DRAWS = ("Random", "Sampler", "Multinomial", "Bernoulli")
"""Parts of the names of operations whose results each rank may draw for itself."""

_OF_NO_SAMPLE = "_hvd_dbs_of_no_sample"
"""Attribute of a tensor that is known to depend on no sample, where the graph does not show it."""


def mark_of_no_sample(tensor: tf.Tensor) -> tf.Tensor:
    """The same tensor, known to depend on no sample, as what a loop over samples gives back."""
    marked = tf.identity(tensor)
    if not tf.executing_eagerly():
        setattr(marked, _OF_NO_SAMPLE, True)
    return marked


def depends_on_samples(
    tensor: tf.Tensor, known: Iterable[tf.Tensor] = (), *, or_on_their_number: bool = False
) -> bool | None:
    """Whether a tensor's values depend on the samples of the step, or on random draws.

    What depends on their shape alone does not count: positions, for example.

    Args:
        tensor: A tensor of the step that is traced.
        known: Tensors whose dependence does not count.
        or_on_their_number: Whether a dependence on how many there are counts, as of positions that
            are repeated for each sample.

    Returns:
        None for a tensor of no graph.
    """
    if not hasattr(tensor, "graph") or tf.executing_eagerly():
        return None
    seen = {id(one) for one in known}
    waiting = [tensor]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, _OF_NO_SAMPLE):
            continue
        kind = one.op.type
        if one.dtype == tf.resource or kind == "Rank":
            continue
        if kind in _BY_SHAPE and not or_on_their_number:
            continue
        if or_on_their_number and _is_other_dimension(one):
            continue
        if kind.startswith(_READS) or any(part in kind for part in _DRAWS):
            return True
        if kind == "Placeholder":
            outside = _captured(one)
            if outside is None:
                return True  # What the step is given.
            if hasattr(outside, "graph"):
                waiting.append(outside)
            continue  # Else a value that was there before the step.
        waiting.extend(one.op.inputs)
    return False


def _is_other_dimension(tensor: tf.Tensor) -> bool:
    """Whether a tensor is taken from a shape, and not from its first dimension, the samples."""
    kind = tensor.op.type
    if kind not in ("StridedSlice", "Unpack", "GatherV2"):
        return False
    shape = tensor.op.inputs[0]
    while shape.op.type in ("Cast", "Identity"):
        shape = shape.op.inputs[0]
    if shape.op.type not in ("Shape", "ShapeN"):
        return False
    if kind == "Unpack":
        return tensor.value_index > 0
    first = tf.get_static_value(tensor.op.inputs[1])  # Dimensions, or the first of a slice.
    if first is None or (kind == "StridedSlice" and tensor.op.get_attr("begin_mask")):
        return False
    rank = shape.shape[0]
    return bool((first > 0 if rank is None else first % rank > 0).all())


def _captured(placeholder: tf.Tensor) -> tf.Tensor | None:
    """What a function's placeholder stands for, where it is no argument."""
    for outside, inside in getattr(placeholder.graph, "captures", ()):
        if inside is placeholder:
            return outside
    return None
