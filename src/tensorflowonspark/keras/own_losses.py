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
from tensorflowonspark.keras.loss_terms import FREE, KERAS, MEAN, SUM, is_of_keras, may_be_loss, terms


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


def weigh_gradients(trainer: ModuleType) -> None:
    """Have own steps weigh their gradients (called after the import of Keras's TensorFlow trainer)."""

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

    wrap(trainer.tf, "GradientTape.gradient", gradient)


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


def track_all_rows(trainer: ModuleType) -> None:
    """Have metrics track losses of all rows (called after the import of Keras's TensorFlow trainer)."""

    def update_mean(wrapped: Any, mean: Any, /, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        if step is None or not step.here:
            return wrapped(values, sample_weight)
        return wrapped(*_of_all_rows(step, mean, values, sample_weight))

    def update_sum(wrapped: Any, _sum: Any, /, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        own = step is not None and step.name and step.here and may_be_loss(values)
        return wrapped(step.contribution(values) if step and own else values, sample_weight)

    def compute_loss(wrapped: Any, _model: Any, /, *args: Any, **kwargs: Any) -> Any:
        loss, step = wrapped(*args, **kwargs), current_step()
        return step.total(loss) if step and step.here and loss.shape.rank == 0 else loss

    wrap(trainer.metrics_module, "Mean.update_state", update_mean)
    wrap(trainer.metrics_module, "Sum.update_state", update_sum)
    wrap(trainer.base_trainer, "Trainer.compute_loss", compute_loss)


def _of_all_rows(step: GlobalStep, mean: Any, values: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the arguments of a ``Mean`` in place of a replica's own values and their weights."""
    outputs = getattr(step.model._compile_loss, "metrics", [])  # with weights, if Keras knows a number of rows
    is_output = any(mean is each for each in outputs)
    if is_output or (mean is step.model._loss_tracker and sample_weight is not None):
        sample_weight = step.own  # each row counts once
    elif sample_weight is None:
        if not may_be_loss(values):
            return values, None
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return step.contribution(values) * tf.cast(replicas, values.dtype), None  # each step counts once
    return (step.shown(values) if is_of_keras(values) else values), sample_weight
