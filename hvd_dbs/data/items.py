"""What the items of a Python source look like, and how they become tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


@dataclass(frozen=True)
class ItemSpec:
    """Structure, shapes and dtypes of one sample, learnt from an item and checked on others.

    Attributes:
        structure: The nesting, with a `tf.TensorSpec` at each leaf.
    """

    structure: Any

    @classmethod
    def of(cls, item: Any, batched: bool) -> ItemSpec:
        """The spec of an item's samples: itself, or its rows.

        Raises:
            ValueError: If a leaf is no tensor, or rows differ in number.
        """

        def spec(leaf: Any) -> tf.TensorSpec:
            try:
                with tf.device("CPU"):
                    tensor = tf.convert_to_tensor(leaf)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"item 0 has {_named(leaf, item)}; expected numbers, text or arrays in "
                    f"tuples and dicts. Leave it out or convert it in the source."
                ) from error
            if batched and tensor.shape.rank == 0:
                raise ValueError(
                    f"item 0 has the value {leaf!r} in it; expected arrays whose first dimension "
                    f"counts the samples of a batch."
                )
            return tf.TensorSpec(tensor.shape[1:] if batched else tensor.shape, tensor.dtype)

        one = cls(tf.nest.map_structure(spec, _standard(item)))
        if not one.dtypes:
            raise ValueError(f"item 0 is {item!r}; expected numbers, text or arrays.")
        if batched:
            one.rows(item, 0)
        return one

    @property
    def dtypes(self) -> list[tf.DType]:
        """Of the leaves."""
        return [spec.dtype for spec in tf.nest.flatten(self.structure)]

    @property
    def text(self) -> str:
        """The same on all ranks whose items look the same."""
        return repr(self.structure)

    def pack(self, leaves: list[tf.Tensor]) -> Any:
        """A batch in the nesting of the samples, from its leaves; of dynamic first dimension."""
        specs = tf.nest.flatten(self.structure)
        shaped = [
            tf.ensure_shape(leaf, [None, *spec.shape])
            for leaf, spec in zip(leaves, specs, strict=True)
        ]
        return tf.nest.pack_sequence_as(self.structure, shaped)

    def leaves(self, item: Any, number: int) -> list[NDArray[Any]]:
        """The leaves of a sample.

        Raises:
            ValueError: If it does not look like item 0.
        """
        return self._checked(_standard(item), number, 0)

    def rows(self, item: Any, number: int) -> list[NDArray[Any]]:
        """The leaves of an item that is a batch, each of shape `[rows, ...]`.

        Raises:
            ValueError: If its rows do not look like those of item 0, or differ in number.
        """
        leaves = self._checked(_standard(item), number, 1)
        counts = {len(leaf) for leaf in leaves}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"item {number} has arrays of {sorted(counts)} samples; expected the same "
                f"number, at least 1, in each."
            )
        return leaves

    def _checked(self, item: Any, number: int, first_axis: int) -> list[NDArray[Any]]:
        try:
            tf.nest.assert_same_structure(self.structure, item)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"item {number} is nested differently from item 0, which has {self.text}: {error}"
            ) from error
        leaves = []
        for spec, leaf in zip(tf.nest.flatten(self.structure), tf.nest.flatten(item), strict=True):
            if leaf is None:
                raise ValueError(
                    f"item {number} has {_named(leaf, item)} where item 0 has {spec.dtype.name} of "
                    f"shape {tuple(spec.shape)}. All samples must look the same: leave it out, or "
                    f"fill it in, in the source."
                )
            # NumPy's own type for bytes would cut off zeros at their end.
            array = np.asarray(leaf, dtype=object if spec.dtype == tf.string else None)
            if spec.dtype == tf.string:
                is_same = all(isinstance(text, str | bytes) for text in array.flat)
            elif hasattr(leaf, "dtype"):
                is_same = array.dtype == spec.dtype.as_numpy_dtype
            else:  # Python's own numbers have no width.
                is_same = _holds(spec.dtype, array)
            if not is_same or array.shape[first_axis:] != tuple(spec.shape):
                raise ValueError(
                    f"item {number} has {array.dtype} of shape {array.shape[first_axis:]} where "
                    f"item 0 has {spec.dtype.name} of shape {tuple(spec.shape)}. All samples "
                    f"must look the same: convert or pad in the source."
                )
            leaves.append(
                array
                if spec.dtype == tf.string
                else array.astype(spec.dtype.as_numpy_dtype, copy=False)
            )
        return leaves


def _holds(dtype: tf.DType, array: NDArray[Any]) -> bool:
    """Whether a type of numbers has the kind and the range of these."""
    if not np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind"):
        return False
    is_in_range = not dtype.is_integer or ((array >= dtype.min) & (array <= dtype.max)).all()
    return bool(is_in_range)


def _standard(item: Any) -> Any:
    """An item without lists, which do not nest in tf.data: tuples of arrays, or arrays."""
    if isinstance(item, list) and any(np.ndim(part) for part in item if hasattr(part, "shape")):
        item = tuple(item)
    if isinstance(item, tuple):
        parts = [_standard(part) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    if isinstance(item, dict):
        return {name: _standard(part) for name, part in item.items()}
    return np.asarray(item) if isinstance(item, list) else item


def without_lists(nested: Any) -> Any:
    """The same with tuples in place of lists, whose tensors tf.data would stack into one."""
    if isinstance(nested, dict):
        return {name: without_lists(part) for name, part in nested.items()}
    if not isinstance(nested, tuple | list):
        return nested
    parts = [without_lists(part) for part in nested]
    return type(nested)(*parts) if hasattr(nested, "_fields") else tuple(parts)


def _named(leaf: Any, item: Any) -> str:
    """Of which type a leaf is and where in the item, such as "None at [1]['mask']"."""
    kind = "None" if leaf is None else f"the {type(leaf).__name__} {leaf!r}"
    path = _path(leaf, item)
    return f"{kind} at {path}" if path else kind


def _path(leaf: Any, item: Any) -> str | None:
    if item is leaf:
        return ""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(item, dict):
        parts = item.items()
    elif isinstance(item, tuple | list):
        parts = enumerate(item)
    paths = ((name, _path(leaf, part)) for name, part in parts)
    return next((f"[{name!r}]{path}" for name, path in paths if path is not None), None)
