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


def skip_padding(backend: ModuleType) -> None:
    """Have padding count in no moments of all replicas (called after the import of ``nn`` of Keras's TensorFlow)."""

    def moments(wrapped: Any, _: Any, /, x: Any, axes: Any, keepdims: bool) -> Any:
        step = current_step()
        if step is None or not step.here or step.is_compiled:
            return wrapped(x, axes, keepdims)
        real = tf.cast(step.any, x.dtype)
        local = [tf.reduce_sum(each * real, axes, keepdims=True) for each in (x, tf.square(x), tf.ones_like(x))]
        total, squares, count = _sum(local)
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))

    wrap(backend, "_compute_moments_sync", moments)


def reduce_masked(layers: ModuleType) -> None:
    """Have moments behind a mask be those of all replicas (called after the import of ``batch_normalization``)."""

    def moments(wrapped: Any, layer: Any, /, inputs: Any, mask: Any) -> Any:
        step = current_step()
        if step is None or mask is None or not layer.synchronized:
            return wrapped(inputs, mask)
        if not step.here or step.is_compiled:
            raise SpecError(
                f"{layer.name}: BatchNormalization(synchronized=True) behind a mask exchanges its statistics with "
                "the other workers, which can't be compiled: compile the model without jit_compile=True"
            )
        axes, real = layer._reduction_axes, tf.cast(step.any, inputs.dtype)
        valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
        ones = tf.cast(valid, inputs.dtype)
        total, count = _sum([tf.reduce_sum(each * real, axes) for each in (tf.where(valid, inputs, 0.0), ones)])
        count += layers.backend.epsilon()
        mean = total / count
        (squares,) = _sum([tf.reduce_sum(tf.square(tf.where(valid, inputs - mean, 0.0)) * real, axes)])
        return mean, squares / count

    wrap(layers, "BatchNormalization._moments", moments)


def _sum(values: list[tf.Tensor]) -> Any:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
