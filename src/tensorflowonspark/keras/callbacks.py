"""Callbacks that keep the models of several workers equal.

- **Statistics.** In Keras 3 each worker has its own statistics of batches (BatchNorm's moving mean and variance). They
  are averaged over the workers after each epoch and before each evaluation, so that all workers save, evaluate and
  predict with the same model.
- **Files.** All workers have the same callbacks, often with one shared directory. Those that write files run on the
  chief only.
- **BackupAndRestore.** Only the chief backs up and restores; it broadcasts the restored state to the others.
"""

from typing import Any

import keras
import tensorflow as tf

from tensorflowonspark.keras.collectives import assign, broadcast, local_values, reduced
from tensorflowonspark.keras.exchange import callbacks_in, replaced

__all__ = ["AverageStatistics", "BroadcastRestored", "callbacks_of_worker"]

_WRITING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


def callbacks_of_worker(model: keras.Model, callbacks: Any, *added: keras.callbacks.Callback) -> Any:
    """Return the callbacks that this worker runs in place of those that the user gave to ``fit``, and those `added`."""
    is_chief = model.distribute_strategy.extended.should_checkpoint
    given = callbacks_in(callbacks)
    kept = [each for each in given if is_chief or not isinstance(each, _WRITING)]
    # Statistics are averaged before other callbacks save the model; the broadcast follows the chief's restore.
    selected = [*added, AverageStatistics(), *kept]
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in given):
        selected.append(BroadcastRestored())
    return replaced(model, callbacks, selected)


class AverageStatistics(keras.callbacks.Callback):
    """Averages the non-trainable weights over all workers."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Average before other callbacks save the model."""
        self._average()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before the validation."""
        self._average()

    def _average(self) -> None:
        weights = [each for each in self.model.non_trainable_weights if "float" in str(each.dtype)]
        if weights:
            strategy = self.model.distribute_strategy
            values = local_values(strategy, weights)
            assign(strategy, weights, reduced(strategy, tf.distribute.ReduceOp.MEAN, values))


class BroadcastRestored(keras.callbacks.Callback):
    """Broadcasts the state that the chief restored to all workers: weights, optimizer, and the epoch to resume at."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Broadcast the state, if the chief has restored any."""
        model = self.model
        strategy = model.distribute_strategy
        is_chief = strategy.extended.should_checkpoint
        (epoch,) = map(int, broadcast(strategy, is_chief, [[tf.constant(model._initial_epoch or 0)]]))
        if not epoch:
            return
        if not model.optimizer.built:
            with strategy.scope():
                model.optimizer.build(model.trainable_variables)
        variables = [*model.weights, *model.optimizer.variables]
        state = broadcast(strategy, is_chief, local_values(strategy, variables))
        assign(strategy, variables, state)
        model._initial_epoch = epoch
