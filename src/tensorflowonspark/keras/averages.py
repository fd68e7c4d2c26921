"""Means over the rows of all workers, for layers and steps of a program's own."""

from typing import Any


def all_mean(values: Any, rows: Any) -> Any:
    """Return the mean of all workers' values, each weighted with its number of rows.

    A layer that keeps a statistic of the rows that it sees, as a running mean, has a part of each batch on one of
    several workers. With this function all workers keep what one process keeps. What a layer assigns to a weight of
    its own is that of all workers without it, if it is computed of means and sums over rows; a variable of TensorFlow,
    and what is computed in a ``tf.function`` or ``tf.py_function``, need it.

    Parameters
    ----------
    values : tensor
        The mean over this worker's rows, of floats and any shape that is the same on all workers. A gradient flows
        through it.
    rows : tensor or number
        Over how many rows it is.

    Returns
    -------
    tensor
        Of the same shape and dtype. It is `values` itself in one process, in a step that computes with the rows of all
        workers, as on JAX, and outside of the steps of ``fit`` and ``evaluate``.

    Examples
    --------
    >>> import keras
    >>> class RunningMean(keras.layers.Layer):
    ...     def build(self, shape):
    ...         self.mean = self.add_weight((shape[-1],), "zeros", trainable=False)
    ...     def call(self, x, training=False):
    ...         if training:
    ...             mean = all_mean(keras.ops.mean(x, axis=0), keras.ops.shape(x)[0])
    ...             self.mean.assign(0.9 * self.mean + 0.1 * mean)
    ...         return x - self.mean
    >>> layer = RunningMean()
    >>> _ = layer(keras.ops.ones((2, 3)), training=True)
    >>> [f"{each:.1f}" for each in keras.ops.convert_to_numpy(layer.mean)]
    ['0.1', '0.1', '0.1']
    """
    from tensorflowonspark.keras.hooks import keras_backend

    if keras_backend() != "tensorflow":
        return values
    import tensorflow as tf

    from tensorflowonspark.keras.tensorflow_collectives import all_sum
    from tensorflowonspark.keras.worker_step import current_step

    step = current_step()
    if step is None:
        return values
    own = tf.cast(rows, values.dtype) * tf.cast(step.any, values.dtype)
    total, count = all_sum(step.strategy, [values * own, own])
    return tf.math.divide_no_nan(total, count)
