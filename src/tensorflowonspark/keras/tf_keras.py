"""``tf_keras``: metrics without padding, and losses divided by what all replicas have.

It sums gradients before it clips them, and calls programs' steps with its own losses, so that two classes are repaired:
those of a model's losses and of its metrics.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.metrics import have_rows, real_rows, update_on
from tensorflowonspark.keras.row_weights import is_averaged
from tensorflowonspark.keras.trackers import TrackedBatch


def skip_padding(compile_utils: ModuleType) -> None:
    """Have metrics be updated with real rows (called after the import of its ``compile_utils``)."""

    def update_state(wrapped: Any, container: Any, /, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        real = real_rows(sample_weight)
        if real is None or not have_rows(y_true, y_pred, sample_weight):
            wrapped(y_true, y_pred, sample_weight)
            return
        if not container.built:
            container.build(y_pred, container._conform_to_outputs(y_pred, y_true))
        update_on(real, wrapped, y_true, y_pred, sample_weight, at_once=False)

    wrap(compile_utils, "MetricsContainer.update_state", update_state)


def divide_by_all(compile_utils: ModuleType) -> None:
    """Have losses be means over the real rows of all replicas (called after the import of its ``compile_utils``)."""
    original = compile_utils.LossesContainer.__call__

    # Without `wraps`: AutoGraph, which converts the steps of tf_keras up to TensorFlow 2.16, would take the original.
    def call(
        container: Any, y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None
    ) -> Any:
        real, own = real_rows(sample_weight), container
        averaged = is_averaged(tf.nest.flatten(container._user_losses))
        if real is not None:
            if not container.built:
                container.build(y_pred)
            batch = TrackedBatch(real, averaged)
            own = copy.copy(container)  # Keras's function runs unchanged, with trackers that correct their values
            own._total_loss_mean = _Tracker(container._total_loss_mean, batch, regularization_losses or [])
            own._per_output_metrics = [each and _Tracker(each, batch, []) for each in container._per_output_metrics]
        total = original(own, y_true, y_pred, sample_weight, regularization_losses)
        if total is None or not averaged or not _has_several_replicas():
            return total
        factor = _factor(compile_utils.losses_utils, y_true, y_pred, real, total.dtype)
        rest = [tf.zeros([], total.dtype), *(tf.cast(each, total.dtype) for each in regularization_losses or ())]
        added = tf.add_n(rest) / tf.distribute.get_strategy().num_replicas_in_sync
        return (total - added) * factor + added

    compile_utils.LossesContainer.__call__ = call


def _has_several_replicas() -> bool:
    strategy = tf.distribute.get_strategy()
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    in_replica = tf.distribute.get_replica_context() is not None
    return in_replica and isinstance(strategy, mirrored) and strategy.num_replicas_in_sync > 1


def _factor(losses_utils: ModuleType, y_true: Any, y_pred: Any, real: Any, dtype: Any) -> Any:
    """Return what makes a replica's mean loss one of the rows or unmasked time steps that all replicas have.

    Rows are those of the labels, which are there before the model's outputs: they are summed while it computes these.
    """
    replica = tf.distribute.get_replica_context()
    outputs = tf.nest.flatten(y_pred)
    masks = [losses_utils.get_mask(each) for each in outputs]
    if len(outputs) > 1 and any(each is not None for each in masks):
        raise SpecError(
            "tf_keras divides the losses of several outputs by each worker's own unmasked time steps, which several "
            "workers can't share evenly: use Keras 3, or one output with a mask"
        )
    labels = next(each for each in tf.nest.flatten(y_true) if each is not None)
    rows = labels.nrows() if isinstance(labels, tf.RaggedTensor) else tf.shape(labels)[0]
    counted = tf.cast(tf.ones([rows]) if masks[0] is None else masks[0], dtype)
    of_real = counted
    if real is not None:
        of_real *= tf.reshape(tf.cast(real, dtype), [-1, *[1] * (counted.shape.rank - 1)])
    count = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(of_real))
    return tf.math.divide_no_nan(tf.reduce_sum(counted) * replica.num_replicas_in_sync, count)


@dataclass(frozen=True)
class _Tracker:
    """A tracker of ``tf_keras`` at one batch."""

    mean: Any
    batch: TrackedBatch
    additional: Iterable[Any]

    def update_state(self, loss: Any, sample_weight: Any = None) -> Any:  # noqa: ARG002 - Keras counts all rows
        return self.batch.update(self.mean.update_state, self.mean.dtype, loss, self.additional)
