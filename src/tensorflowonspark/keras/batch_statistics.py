"""Statistics of ``BatchNormalization(synchronized=True)``: those of the real values that all workers have.

In a step (`worker_step`) Keras knows of one worker, which would normalize with its own statistics. A batch that
consists of padding does not count.
"""

from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.tensorflow_collectives import all_sum
from tensorflowonspark.keras.worker_step import current_step


def reduce_moments(keras: ModuleType) -> None:
    """Have synchronized moments be those of all workers' real values (called after the import of Keras)."""

    def moments(wrapped: Any, layer: Any, /, inputs: Any, mask: Any) -> Any:
        step = current_step()
        if step is None or not layer.synchronized:
            return wrapped(inputs, mask)
        if step.is_compiled:
            raise SpecError(
                f"{layer.name}: BatchNormalization(synchronized=True) exchanges its statistics with the other workers, "
                "which can't be compiled: compile the model without jit_compile=True"
            )
        axes = [axis for axis in range(len(inputs.shape)) if axis != layer.axis % len(inputs.shape)]

        def of_all(*values: Any) -> list[Any]:
            real = tf.cast(step.any, inputs.dtype)
            return all_sum(step.strategy, [tf.reduce_sum(each * real, axes) for each in values])

        if mask is None:
            total, squares, count = of_all(inputs, tf.square(inputs), tf.ones_like(inputs))
            mean = tf.math.divide_no_nan(total, count)
            return mean, tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
        total, count = of_all(tf.where(valid, inputs, 0.0), tf.cast(valid, inputs.dtype))
        count += keras.config.epsilon()
        mean = total / count
        (squares,) = of_all(tf.where(valid, tf.square(inputs - mean), 0.0))
        return mean, squares / count

    wrap(keras, "layers.BatchNormalization._moments", moments)
