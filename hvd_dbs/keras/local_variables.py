"""Variables that each rank keeps its own values of, such as a part of a large embedding."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import keras
import tensorflow as tf

from hvd_dbs.keras.internals import is_built, trained_by
from hvd_dbs.keras.optimizer_options import innermost
from hvd_dbs.tensorflow.variables import tensorflow_variable


def variable_reference(variable: Any) -> Any:
    """What a variable of Keras or TensorFlow is known by in sets.

    Raises:
        TypeError: If it is no variable.
    """
    plain = tensorflow_variable(variable)
    if not isinstance(plain, tf.Variable):
        raise TypeError(
            f"{variable!r} is no variable with a value; expected one of a layer that is built, "
            f"such as layer.kernel, or a tf.Variable."
        )
    return plain.ref()


def references_of_layers(layers: Any) -> set[Any]:
    """The trainable weights of a layer, of several or of none.

    Raises:
        ValueError: If one is no layer, or is not built.
    """
    if layers is None:
        layers = []
    elif isinstance(layers, keras.layers.Layer):
        layers = [layers]
    references = set()
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                f"local_layers holds a {type(layer).__name__}; expected layers of Keras, such as "
                f"local_layers=[model.layers[0]]."
            )
        if not is_built(layer):
            raise ValueError(
                f"The local layer {layer.name!r} is not built, so its variables are not known. "
                f"Build the model first: an Input layer, or model.build(shape)."
            )
        references |= {variable_reference(one) for one in layer.trainable_weights}
    return references


def slots_of(optimizer: Any, references: Set[Any]) -> Iterator[Any]:
    """What an optimizer keeps for variables, such as their momentum."""
    for one in [] if optimizer is None else innermost(optimizer):
        trained = trained_by(one)
        for slots in vars(one).values():
            # Lists of slots are as long as that of the variables, which is there too.
            if not isinstance(slots, list) or len(slots) != len(trained):
                continue
            for variable, slot in zip(trained, slots, strict=True):
                is_slot = isinstance(slot, keras.Variable) and slot is not variable
                if is_slot and variable_reference(variable) in references:
                    yield slot
