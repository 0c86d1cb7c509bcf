"""Objects of Keras that get more methods, and stay what they are for Keras."""

from __future__ import annotations

import functools
from typing import Any

import keras


def mix_in(mixin: type, keras_object: Any) -> None:
    """Puts a class before that of an optimizer or layer, in place.

    The new class has the name and module of the old one, and the name that it is registered by, so
    that Keras saves the object as before.

    Args:
        mixin: The class with the methods.
        keras_object: Is of both classes afterwards.
    """
    base: Any = type(keras_object)
    object.__setattr__(keras_object, "__class__", _mixed(mixin, base))


@functools.cache
def _mixed(mixin: type, base: type) -> type:
    attributes = {"__module__": base.__module__, "__doc__": base.__doc__}
    mixed = type(base.__name__, (mixin, base), attributes)
    package, is_registered, name = keras.saving.get_registered_name(base).partition(">")
    if is_registered:
        registered = keras.saving.get_custom_objects()
        before = dict(registered)
        keras.saving.register_keras_serializable(package, name)(mixed)
        registered.update(before)  # What is loaded is of the class that the user has registered.
    return mixed
