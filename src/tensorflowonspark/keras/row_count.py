"""Count of the rows that a feed gave out and of those that reached a step of ``fit``.

What is certain is compared, and nothing else: whole passes over the feed, and epochs that end because their data does.
The rows of steps are those that Keras's own tracker of the loss has counted, so that counting costs nothing.
"""

import json
import os
import warnings
from typing import Any

import keras
import tensorflow as tf

from tensorflowonspark.keras.collectives import local_values
from tensorflowonspark.keras.feed_tracking import DataPath, ledger

__all__ = ["RowCount"]

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
    """Compares, at the end of the first epoch, the rows that this worker's feed gave out with those of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self._way = DataPath.UNKNOWN
        self._before = self._begun = 0
        self._open = self._compared = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Note what the program has read by itself, and how the data of this ``fit`` came to the strategy."""
        self._way = ledger.way
        self._before = ledger.given_since_fit()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Begin to count."""
        self._begun, self._open = ledger.given, not self._compared

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Compare before the validation, which counts its own rows."""
        self._compare()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Compare, unless that has been done."""
        self._compare()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Let the next ``fit`` begin anew."""
        ledger.end_fit()

    def _compare(self) -> None:
        if not self._open or self._way is DataPath.UNKNOWN or self.model.stop_training:
            return
        self._open, self._compared = False, True
        given = ledger.given - self._begun
        if not given and self._way is DataPath.DIVIDED:  # what was read before, into arrays as it may be
            given = self._before
        reached = self._reached()
        if 0 < reached < given:
            warnings.warn(
                f"{_role()}: its feed gave out {given} rows, and {reached} of them reached a step of fit in an epoch: "
                f"{_HINTS[self._way]}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _reached(self) -> int:
        """Return how many rows this worker's steps have had; 0 if its model does not count them."""
        count = getattr(getattr(self.model, "_loss_tracker", None), "count", None)
        if count is None:
            return 0
        (values,) = local_values(self.model.distribute_strategy, [count])
        return round(float(tf.add_n([tf.cast(value, tf.float64) for value in values])))


def _role() -> str:
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    return f"{task.get('type', 'worker')}:{task.get('index', 0)}"
