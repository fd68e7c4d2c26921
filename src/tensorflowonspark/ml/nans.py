"""NaN in columns of floats, whose rows are counted as they arrive, and which are named when the loss becomes NaN."""

import logging
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tensorflowonspark.errors import FeedError

_log = logging.getLogger(__name__)


class NanRows:
    """The numbers of this worker's rows with a NaN, by column.

    NaN is a number to Keras, and a model may take it; an error is only made of it when the loss is NaN.
    """

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()

    def counted(self, columns: Mapping[str, Any], weight: Any) -> Any:
        """Return the weights of a batch, whose computation counts the rows with a NaN.

        Weights mark the rows that fill up a batch.
        """
        import tensorflow as tf

        from tensorflowonspark.keras.metrics import real_rows

        floats = {name: each for name, each in columns.items() if each.dtype.is_floating}
        real = real_rows(weight)
        if not floats or real is None:
            return weight
        found = tf.stack([tf.math.count_nonzero(_has_nan(each) & real) for each in floats.values()])

        def add(numbers: Any) -> Any:
            self._rows.update({name: int(number) for name, number in zip(floats, numbers, strict=True) if number})
            return numbers

        shown = tf.cond(tf.reduce_any(found > 0), lambda: tf.numpy_function(add, [found], tf.int64), lambda: found)
        with tf.control_dependencies([shown]):
            return tf.identity(weight)

    def callback(self, keras: Any) -> Any:
        """Return the callback that looks at the loss of each epoch; `keras` is Keras 3 or tf_keras."""
        rows = self._rows

        class StopAtNan(keras.callbacks.Callback):
            def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
                rows.clear()  # of what layers have adapted to

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if math.isnan(float((logs or {}).get("loss", 0.0))):
                    _explain(epoch + 1, rows)

        return StopAtNan()


def _has_nan(values: Any) -> Any:
    """Return for each row whether it has a NaN."""
    import tensorflow as tf

    if hasattr(values, "nested_row_splits"):
        values = values.to_tensor()
    return tf.reduce_any(tf.math.is_nan(values), axis=list(range(1, len(values.shape))))


def _explain(epoch: int, rows: Mapping[str, int]) -> None:
    if not rows:
        _log.warning(
            "the loss is NaN after epoch %d, and no value of this worker's columns is: a smaller learning rate, or "
            "clipnorm of the optimizer, keeps a training from this",
            epoch,
        )
        return
    named = ", ".join(f"{name!r} in {number} row{'s' if number > 1 else ''}" for name, number in rows.items())
    raise FeedError(
        f"the loss is NaN after epoch {epoch}, as values of columns are, on this worker {named}: replace them in Spark "
        "(df.na.fill, or transform for arrays), or leave these rows out (df.na.drop)"
    )
