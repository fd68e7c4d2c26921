"""Class weights beside sample weights.

Keras 3 refuses ``class_weight`` where a batch has weights of its own, as all batches of a feed have: those of rows that
fill up are -0.0 (see `padding`). Here both are multiplied, as tf_keras does it. A row that fills up stays one: the
product keeps its sign, whatever the weight of its class.
"""

from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras import wrap

__all__ = ["multiply_class_weights", "multiply_class_weights_on_batch"]


def multiply_class_weights(adapter: ModuleType) -> None:
    """Have data sets take both kinds of weights (called after the import of Keras's ``tf_dataset_adapter``)."""

    def make(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        by_class = wrapped(*args, **kwargs)

        @tf.autograph.experimental.do_not_convert
        def weighted(*data: Any) -> Any:
            x, y, weights = adapter.data_adapter_utils.unpack_x_y_sample_weight(data)
            if weights is None or tf.nest.is_nested(y):  # Keras refuses several outputs by name
                return by_class(*data)
            x, y, of_classes = by_class(x, y)
            return x, y, _product(weights, of_classes)

        return weighted

    wrap(adapter, "make_class_weight_map_fn", make)


def multiply_class_weights_on_batch(trainer: ModuleType) -> None:
    """Have ``train_on_batch`` take both kinds of weights (called after the import of Keras's trainer)."""

    def train_on_batch(wrapped: Any, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def arguments(
            x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
        ) -> Any:
            if sample_weight is not None and class_weight is not None:
                of_classes = trainer.data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
                sample_weight, class_weight = _product(tf.convert_to_tensor(sample_weight), of_classes), None
            return wrapped(x, y, sample_weight, class_weight, return_dict)

        return arguments(*args, **kwargs)

    wrap(trainer, "TensorFlowTrainer.train_on_batch", train_on_batch)


def _product(weights: tf.Tensor, of_classes: Any) -> tf.Tensor:
    """Return the product of weights of rows (or of time steps) with those of their classes."""
    if not weights.dtype.is_floating:
        weights = tf.cast(weights, tf.float32)
    of_classes = tf.cast(of_classes, weights.dtype)
    rank = max(weights.shape.rank, of_classes.shape.rank)
    aligned = [
        tf.reshape(each, tf.concat([tf.shape(each), [1] * (rank - each.shape.rank)], 0))
        for each in (weights, of_classes)
    ]
    # The sign of a zero is kept, even beside a class whose weight is negative.
    zero = tf.equal(aligned[0], 0)
    return tf.where(zero, aligned[0] * tf.abs(aligned[1]), aligned[0] * aligned[1])
