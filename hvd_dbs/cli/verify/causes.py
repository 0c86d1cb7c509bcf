"""Why a model's training on all ranks is not that of one process, from what was seen of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SAME = 1e-3
"""Part of a gradient; what differs by more is another one."""

_GLOBAL_LOSS = "Make it with hvd.global_mean(values, weights) or hvd.global_sum(values)"
_OWN_LOSS = f"{_GLOBAL_LOSS}, or return one value for each sample."


@dataclass(frozen=True)
class Step:
    """A step of one process beside the same step of all ranks; differences are relative.

    Attributes:
        changed_layer: The first layer whose output for a sample depends on which other samples
            its rank has; None: none does, or that cannot be seen.
        whole_loss: Of one process; NaN where the model's step computes it by itself.
        mean_loss: The mean of the ranks' losses, weighted by samples.
        part_losses: Plain Keras's loss for each rank's samples.
        batch_sizes: Samples of each rank.
        rounding: Part of a loss that rounding may explain.
        gradient: Difference of the ranks' weighted mean gradient from that of one process.
        sum_gradient: Difference of the sum of the gradients that plain Keras has for each rank's
            samples.
    """

    changed_layer: str | None
    whole_loss: float
    mean_loss: float
    part_losses: Sequence[float]
    batch_sizes: Sequence[int]
    rounding: float
    gradient: float
    sum_gradient: float


@dataclass(frozen=True)
class Model:
    """What a model is made of that is known to make a difference.

    Attributes:
        own_statistics: Normalization layers that use each rank's own samples.
        has_own_step: Whether it has a `train_step` of its own.
        drawn: Layers that have drawn random numbers in training.
        batch_means: Metrics that differ and count batches, not samples.
        half_precision: The policy's name, if it computes in half precision.
        optimizers: Classes of its optimizers.
    """

    own_statistics: Sequence[str] = ()
    has_own_step: bool = False
    drawn: Sequence[str] = ()
    batch_means: Sequence[str] = ()
    half_precision: str = ""
    optimizers: Sequence[str] = ()


def causes(model: Model, step: Step | None, weights_differ: bool) -> list[str]:
    """The causes that explain a difference, the surest first; each a sentence or two."""
    found = []
    if model.drawn:
        found.append(
            f"{_names(model.drawn)} drew random numbers, which differ between ranks and one "
            f"process. Give them to the model as data, or make them 0 in the function."
        )
    if weights_differ:
        found += _of_weights(model, step)
    if model.batch_means:
        found.append(
            f"{_names(model.batch_means)} counts steps, not samples. Update it with "
            f"sample_weight=tf.shape(x)[0], or with one value for each sample."
        )
    return found


def _of_weights(model: Model, step: Step | None) -> list[str]:
    found = []
    if model.own_statistics:
        found.append(
            f"{_names(model.own_statistics)} normalizes with the samples of its rank alone. Make "
            f"it BatchNormalization(synchronized=True)."
        )
    if step is not None and step.changed_layer and step.changed_layer not in model.own_statistics:
        found.append(
            f"{step.changed_layer} gives another output for a sample where other ranks have the "
            f"rest of the batch. Sum over all ranks in it: current_global_batch().sum(...) of "
            f"hvd_dbs.tensorflow.global_batch."
        )
    if not found and step is not None:
        found = _of_loss(step) or _of_gradient(model, step)
    if not found and not model.drawn:
        optimizers = f" ({', '.join(model.optimizers)})" if model.optimizers else ""
        found.append(
            f"not found: layers, losses and gradients of a first step are those of one process. "
            f"What remains is what training does after it: optimizers{optimizers} that "
            f"are no attributes of the model, variables that it assigns itself, or state that it "
            f"keeps in Python."
        )
    if model.half_precision:
        found.append(
            f"{model.half_precision} rounds coarsely, and differently in batches of another size. "
            f"Compare in float32 first."
        )
    return found


def _of_loss(step: Step) -> list[str]:
    whole = step.whole_loss
    if not (abs(whole) < float("inf")) or _is_near(step.mean_loss, whole, step.rounding):
        return []
    parts = step.part_losses
    seen = (
        f"the loss of a global batch is {whole:.6g}, and its ranks' losses weighted by samples "
        f"are {step.mean_loss:.6g}"
    )
    if _is_near(sum(parts), whole, step.rounding):
        return [f"{seen}: it looks like a sum over samples, not a mean. {_OWN_LOSS}"]
    mean = sum(n * part for n, part in zip(step.batch_sizes, parts, strict=True))
    if _is_near(mean / sum(step.batch_sizes), whole, step.rounding):
        return [
            f"{seen}: it is a mean over samples in plain Keras and not within fit. Check what of "
            f"hvd_dbs it uses."
        ]
    return [
        f"{seen}: it is not a mean over samples, but one number that depends on the whole batch, "
        f"such as a sum divided by the valid elements of one rank. {_OWN_LOSS}"
    ]


def _of_gradient(model: Model, step: Step) -> list[str]:
    if step.gradient <= _SAME:
        return []
    where = "a loss in train_step" if model.has_own_step else "a loss, or a gradient of its own,"
    kind = "is a sum over samples" if step.sum_gradient <= _SAME else "is not a mean over samples"
    in_step = (
        f"{_GLOBAL_LOSS}. If train_step clips gradients, let the optimizer do it: "
        f"SGD(..., global_clipnorm=1.0)."
    )
    return [
        f"the ranks' gradients weighted by samples differ from those of one process by "
        f"{100 * step.gradient:.2g} %, though layers give the same outputs: {where} {kind}. "
        f"{in_step if model.has_own_step else _OWN_LOSS}"
    ]


def _is_near(given: float, expected: float, part: float) -> bool:
    return abs(given - expected) <= part * max(abs(expected), 1e-6)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
