"""Objects of Keras that get more methods, and stay what they are for Keras."""

from __future__ import annotations

from typing import Any


def mix_in(mixin: type, keras_object: Any) -> None:
    """Puts a class before that of an optimizer or layer, in place.

    The new class has the name and module of the old one, so that Keras saves the object as before.

    Args:
        mixin: The class with the methods.
        keras_object: Is of both classes afterwards.
    """
    base = type(keras_object)
    attributes = {"__module__": base.__module__, "__doc__": base.__doc__}
    mixed = type(base.__name__, (mixin, base), attributes)
    object.__setattr__(keras_object, "__class__", mixed)
