"""Horovod's options of a distributed optimizer: what is honoured and what is refused."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd


def check_options(
    op: Any, gradient_predivide_factor: Any, num_groups: Any, groups: Any, balancer: Any
) -> None:
    """Refuses options that cannot be honoured; those that change no result are accepted.

    Raises:
        ValueError: With what to do instead.
    """
    if op == hvd.Adasum:
        raise ValueError(
            "op=hvd.Adasum is not supported on Keras 3. Use op=hvd.Average; to train with a larger "
            "learning rate on more ranks, add hvd.callbacks.LearningRateWarmupCallback."
        )
    if op not in (hvd.Average, hvd.Sum):
        raise ValueError(f"op={op!r} is neither hvd.Average nor hvd.Sum.")
    if op == hvd.Sum and balancer is not None:
        raise ValueError(
            "op=hvd.Sum cannot be combined with a balancer: gradients are means over batches of "
            "different sizes, and are weighted by them. Use op=hvd.Average, and multiply the "
            "learning rate by hvd.size()."
        )
    if not (isinstance(gradient_predivide_factor, (int, float)) and gradient_predivide_factor > 0):
        raise ValueError(
            f"gradient_predivide_factor={gradient_predivide_factor!r}; expected a positive number."
        )
    if op == hvd.Sum and gradient_predivide_factor != 1:
        raise ValueError(
            "gradient_predivide_factor splits the division of an average in two; op=hvd.Sum "
            "divides nothing. Leave it out."
        )
    if groups is None:
        groups = num_groups or None
    is_number = isinstance(groups, int) and groups > 0
    if not (groups is None or is_number or isinstance(groups, list)):
        raise ValueError(
            f"groups={groups!r}; expected a positive number or a list of lists of variables. "
            f"Gradients travel in buckets of a size whatever it is: leave it out."
        )


def innermost(optimizer: Any) -> list[Any]:
    """The optimizers that update variables: those that this one wraps, or itself."""
    inner = getattr(optimizer, "inner_optimizer", None)  # Of a LossScaleOptimizer.
    wrapped = [inner] if inner is not None else getattr(optimizer, "optimizers", None)
    if not wrapped:
        return [optimizer]
    return [one for outer in wrapped for one in innermost(outer)]


def accumulate_gradients(optimizer: Any, num_passes: Any) -> None:
    """Makes an optimizer that is not built update variables once in so many passes.

    Raises:
        ValueError: If it does so already with another number, or it is no positive whole number.
    """
    if not isinstance(num_passes, int) or num_passes < 1:
        raise ValueError(
            f"backward_passes_per_step={num_passes!r}; expected a whole number, 1 or more."
        )
    if num_passes == 1:
        return
    targets = innermost(optimizer)
    for one in targets:
        if one.gradient_accumulation_steps:
            raise ValueError(
                f"backward_passes_per_step={num_passes}, and the optimizer has "
                f"gradient_accumulation_steps={one.gradient_accumulation_steps} already. Leave out "
                f"one of the two: Keras applies the mean of the passes, Horovod their sum unless "
                f"average_aggregated_gradients=True."
            )
    for one in targets:
        one.gradient_accumulation_steps = num_passes
