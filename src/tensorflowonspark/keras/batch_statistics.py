"""Statistics of ``BatchNormalization(synchronized=True)``: those of the real values that all replicas have.

Keras adds up the sums and counts of all replicas, but not those behind a mask, where each replica normalizes with its
own. A batch that consists of padding would count like any other.
"""

from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.global_batch import current_step
from tensorflowonspark.keras.hooks import wrap


def reduce_moments(keras: ModuleType) -> None:
    """Have synchronized moments be those of all replicas' real values (called after the import of Keras)."""

    def moments(wrapped: Any, layer: Any, /, inputs: Any, mask: Any) -> Any:
        step = current_step()
        if step is None or not layer.synchronized or (mask is None and (not step.here or step.is_compiled)):
            return wrapped(inputs, mask)
        axes = [axis for axis in range(len(inputs.shape)) if axis != layer.axis % len(inputs.shape)]
        real = tf.cast(step.any, inputs.dtype)
        if mask is None:
            local = [tf.reduce_sum(each * real, axes) for each in (inputs, tf.square(inputs), tf.ones_like(inputs))]
            total, squares, count = _sum(local)
            mean = tf.math.divide_no_nan(total, count)
            return mean, tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        if not step.here or step.is_compiled:
            raise SpecError(
                f"{layer.name}: BatchNormalization(synchronized=True) behind a mask exchanges its statistics with "
                "the other workers, which can't be compiled: compile the model without jit_compile=True"
            )
        valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
        ones = tf.cast(valid, inputs.dtype)
        total, count = _sum([tf.reduce_sum(each * real, axes) for each in (tf.where(valid, inputs, 0.0), ones)])
        count += keras.config.epsilon()
        mean = total / count
        (squares,) = _sum([tf.reduce_sum(tf.square(tf.where(valid, inputs - mean, 0.0)) * real, axes)])
        return mean, squares / count

    wrap(keras, "layers.BatchNormalization._moments", moments)


def _sum(values: list[tf.Tensor]) -> Any:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
