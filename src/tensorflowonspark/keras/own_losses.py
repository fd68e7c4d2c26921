"""Losses that a ``train_step`` or ``compute_loss`` of a model's own computes, on several replicas.

Such a loss is that of one replica's rows. If it is a mean over the rows, as in most of Keras's guides, the gradient of
all rows is the mean of the replicas' gradients, weighted with their rows; if it is a sum, it is their sum. The graph of
the loss shows which (`loss_terms`); what it does not show is refused. Programs that use the number of replicas divide
their losses themselves, so their gradients are added up.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.global_batch import GlobalStep, current_step
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.loss_terms import FREE, KERAS, MEAN, SUM, terms


def is_sum(step: GlobalStep, loss: Any, *, strict: bool) -> bool:
    """Return whether a loss is a sum over rows, and not a mean over them.

    Parameters
    ----------
    step : GlobalStep
        The step that computes it.
    loss : tf.Tensor
        The loss.
    strict : bool
        Whether to refuse a loss whose graph does not show it; else it counts as a mean.

    Raises
    ------
    SpecError
        If a loss is neither.
    """
    found = terms(loss)
    if found == {SUM} or (found == {SUM, FREE} and step.divisor != 1):  # the latter with tf.nn.compute_average_loss
        return True
    if SUM in found or (strict and not found <= {KERAS, MEAN, FREE}):
        problem = "is a sum over the rows of a batch in one term, and not in another" if SUM in found else (
            "is not seen to be a mean or a sum over the rows of a batch")  # fmt: skip
        raise SpecError(
            f"{step.name or type(step.model).__name__}: its loss {problem}, and decides how the gradients of several "
            "workers become those of one process: compute it as a mean over the rows (keras.ops.mean), by a class of "
            "keras.losses, which also divide masks and weights by what all workers have, without run_eagerly=True; "
            "or divide it by strategy.num_replicas_in_sync in the step"
        )
    return False


def weigh_gradients(tensorflow: ModuleType) -> None:
    """Have own steps weigh their gradients (called after the import of TensorFlow)."""

    def gradient(
        wrapped: Any, _: Any, /, target: Any, sources: Any, output_gradients: Any = None, *rest: Any, **options: Any
    ) -> Any:
        step = current_step()
        if step is None or not step.name or not all(hasattr(each, "assign") for each in tf.nest.flatten(sources)):
            # The last are gradients by inputs, as for a penalty.
            return wrapped(target, sources, output_gradients, *rest, **options)
        losses = tf.nest.flatten(target)
        sums = [is_sum(step, each, strict=step.divisor == 1) for each in losses]
        if not step.here:  # a graph that outlives this step's tensors
            if any(sums):
                raise SpecError(f"{step.name}: a sum over rows in a tf.function within the step: compute a mean")
            step.notes["elsewhere"] = True
            return wrapped(target, sources, output_gradients, *rest, **options)
        step.weighted = True
        given = tf.nest.flatten(output_gradients) if output_gradients is not None else map(tf.ones_like, losses)
        by_loss = [_factor(step, *each) for each in zip(losses, sums, strict=True)]
        factors = [each * tf.cast(factor, each.dtype) for each, factor in zip(given, by_loss, strict=True)]
        return wrapped(target, sources, tf.nest.pack_sequence_as(target, factors), *rest, **options)

    wrap(tensorflow, "GradientTape.gradient", gradient)


def _factor(step: GlobalStep, loss: Any, of_sum: bool) -> Any:
    """Return by what the gradient of a replica's loss is multiplied."""
    if not of_sum:
        return step.share * step.divisor
    if FREE not in terms(loss):
        return step.any
    message = f"{step.name}: a worker without rows in this step can't take a sum over rows out of its loss"
    with tf.control_dependencies([tf.debugging.assert_positive(step.own, message=message)]):
        return tf.identity(step.any)


def weighted(gradients: Sequence[Any]) -> list[Any]:
    """Return an own step's gradients, weighted unless they are already."""
    step = current_step()
    if step is None or not step.name or (step.weighted and not step.notes):
        return list(gradients)
    if step.weighted:
        raise SpecError(
            f"{step.name}: gradients that are computed in a tf.function within the step, beside others that are not, "
            "can't be weighted with the rows of each worker: compute all of them in one of both"
        )
    factor = step.share * step.divisor
    return [each if each is None else tf.math.scalar_mul(tf.cast(factor, each.dtype), each) for each in gradients]
