"""The optimizers that a model trains with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from hvd_dbs.balancer import Balancer


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The compiled optimizer, and those that the model keeps as attributes.

    A model with a `train_step` of its own may have several, as the generator and the discriminator
    of a GAN, and leave the compiled one unused.
    """
    attributes = [
        value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)
    ]
    compiled = getattr(model, "optimizer", None)  # A model that is not compiled has none.
    all_of_them = attributes if compiled is None else [compiled, *attributes]
    return list({id(one): one for one in all_of_them}.values())


def balancer_of(model: keras.Model) -> Balancer | None:
    """The balancer that gradients are weighted by; None: by none."""
    found = (getattr(optimizer, "balancer", None) for optimizer in optimizers_of(model))
    return next((balancer for balancer in found if balancer is not None), None)


def training_variables(model: keras.Model) -> list[keras.Variable]:
    """The variables of a model and of its optimizers, in an order that all ranks have."""
    return [
        *model.weights,
        *(variable for optimizer in optimizers_of(model) for variable in optimizer.variables),
    ]
