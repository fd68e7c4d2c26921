"""Callbacks with which several workers agree on one model.

- **Statistics.** What a layer keeps of its batches (BatchNorm's moving mean and variance) is each worker's own in
  Keras 3. It is averaged over the workers at each epoch's end and before each evaluation, so that all of them save,
  evaluate and predict with the same model.
- **Files.** All workers are given the same callbacks, often with one shared directory. Those that write files run on
  the chief alone.
- **BackupAndRestore.** The chief alone backs up and restores; it hands what it restored to the others.
"""

from typing import Any

import keras
import tensorflow as tf

from tensorflowonspark.keras.collectives import assign, broadcast, local_values, reduced

__all__ = ["Handover", "Statistics", "agreeing"]

_WRITING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


def agreeing(model: keras.Model, callbacks: Any, *added: keras.callbacks.Callback) -> Any:
    """Return what this worker runs in place of the callbacks that the user gave to ``fit``, with those `added`."""
    is_chief = model.distribute_strategy.extended.should_checkpoint
    container = callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else None
    given = container.callbacks if container else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    kept = [each for each in given if each is not None and (is_chief or not isinstance(each, _WRITING))]
    # Statistics come first, so that what others save and look at has been agreed on; the handover comes last, when
    # the chief has restored.
    agreed = [*added, Statistics(), *kept]
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in given):
        agreed.append(Handover())
    if container is None:
        return agreed
    for callback in agreed:
        callback.set_model(model)
    container.callbacks[:] = agreed
    return container


class Statistics(keras.callbacks.Callback):
    """Averages the weights that are not trained over all workers."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Average before anyone saves."""
        self._agree()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before the validation."""
        self._agree()

    def _agree(self) -> None:
        weights = [each for each in self.model.non_trainable_weights if "float" in str(each.dtype)]
        if weights:
            strategy = self.model.distribute_strategy
            values = local_values(strategy, weights)
            assign(strategy, weights, reduced(strategy, tf.distribute.ReduceOp.MEAN, values))


class Handover(keras.callbacks.Callback):
    """Gives the state that the chief has restored to all workers: weights, optimizer, and the epoch to go on with."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Hand over, if the chief has restored anything."""
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
