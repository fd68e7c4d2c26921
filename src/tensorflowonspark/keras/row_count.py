"""Comparison of the rows that a feed returned with those that reached a step of ``fit``.

Only certain counts are compared: complete passes over the feed, and epochs that end with their data. Keras's own
tracker of the loss counts the rows of steps, so that counting costs nothing.
"""

import warnings
from typing import Any

import keras
import tensorflow as tf

from tensorflowonspark.keras.feed_tracking import DataPath, row_counts
from tensorflowonspark.keras.tensorflow_collectives import local_values
from tensorflowonspark.keras.workers import roles

_HINTS = {
    DataPath.DIVIDED: (
        "TensorFlow divided the dataset among the workers (auto_shard_policy), although the rows of each worker's feed "
        "are its own: train on ctx.dataset(...), or make a tf.data.Dataset of the rows and set "
        "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF"
    ),
    DataPath.WHOLE: (
        "a transformation of the dataset dropped the others; shard(...) is not needed, since the rows of each worker's "
        "feed are its own"
    ),
}


class RowCount(keras.callbacks.Callback):
    """Compares, after the first epoch, the rows that this worker's feed returned with those of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self._data_path = DataPath.UNKNOWN
        self._before = self._begun = 0
        self._open = self._compared = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Record the rows that the program itself has read, and the path of the dataset to the strategy."""
        self._data_path = row_counts.data_path
        self._before = row_counts.fed_since_fit()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Begin to count."""
        self._begun, self._open = row_counts.fed, not self._compared

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Compare before the validation, which counts its own rows."""
        self._compare()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Compare, unless that is done."""
        self._compare()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Begin to count for the next ``fit``."""
        row_counts.end_fit()

    def _compare(self) -> None:
        if not self._open or self._data_path is DataPath.UNKNOWN or self.model.stop_training:
            return
        self._open, self._compared = False, True
        fed = row_counts.fed - self._begun
        if not fed and self._data_path is DataPath.DIVIDED:  # read before, perhaps into arrays
            fed = self._before
        reached = self._reached()
        if 0 < reached < fed:
            warnings.warn(
                f"{roles()[0]}: its feed returned {fed} rows, and {reached} of them reached a step of fit in an epoch: "
                f"{_HINTS[self._data_path]}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _reached(self) -> int:
        """Return the number of rows in this worker's steps; 0 if its model does not count them."""
        count = getattr(getattr(self.model, "_loss_tracker", None), "count", None)
        if count is None:
            return 0
        (values,) = local_values(self.model.distribute_strategy, [count])
        return round(float(tf.add_n([tf.cast(value, tf.float64) for value in values])))
