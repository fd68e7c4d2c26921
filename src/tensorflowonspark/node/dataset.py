"""Batches of numpy arrays as a ``tf.data.Dataset``."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflowonspark.keras.shards import mark_shard
from tensorflowonspark.node.feed import WEIGHT, Epochs

__all__ = ["make_dataset"]

_PREFETCH_BATCHES = 2


def make_dataset(
    epochs: Epochs,
    kinds: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]],
    *,
    label: str | None,
    weight: str | None,
    single: str | None,
) -> tf.data.Dataset:
    """Return the data set of `epochs`, whose length (in steps) is known.

    Parameters
    ----------
    epochs : Epochs
        Makes the batches.
    kinds : dict
        Dtype and shape of one row's value, by column.
    label, weight : str or None
        The label's and the weight's column.
    single : str or None
        The one feature that comes as a tensor, not in a dict.
    """
    features = [name for name in kinds if name not in (label, weight)]

    def arranged(columns: dict[str, Any], weights: Any) -> Any:
        if weight is not None:
            weights = weights * columns[weight]
        if label is None:
            return {**{name: columns[name] for name in features}, WEIGHT: weights}
        x = columns[single] if single else {name: columns[name] for name in features}
        return x, columns[label], weights

    specs = {name: tf.TensorSpec((None, *shape), _tensor_type(dtype)) for name, (dtype, shape) in kinds.items()}
    weights_spec = tf.TensorSpec((None,), tf.float32)
    signature = (
        {**{name: specs[name] for name in features}, WEIGHT: weights_spec}
        if label is None
        else (specs[single] if single else {name: specs[name] for name in features}, specs[label], weights_spec)
    )
    dataset = tf.data.Dataset.from_generator(_arranging(epochs, arranged), output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(epochs.plan.steps))
    return mark_shard(dataset, epochs.plan.batch_rows).prefetch(_PREFETCH_BATCHES)


def _arranging(epochs: Epochs, arranged: Callable[[dict[str, Any], Any], Any]) -> Callable[[], Iterator[Any]]:
    def generate() -> Iterator[Any]:
        for columns, weights in epochs():
            yield arranged(columns, weights)

    return generate


def _tensor_type(dtype: np.dtype[np.generic]) -> tf.DType:
    return tf.string if dtype.kind == "O" else tf.as_dtype(dtype)
