"""Callbacks that keep the models of several workers equal.

- **The first step.** All workers must begin with the same weights and optimizer; a difference is an error.
- **Statistics.** In Keras 3 each worker has its own statistics of batches (BatchNorm's moving mean and variance). They
  are averaged over the workers after each epoch and before each evaluation, so that all workers save, evaluate and
  predict with the same model.
- **Files.** All workers have the same callbacks, often with one shared directory. Those that write files run on the
  chief only.
- **BackupAndRestore.** Only the chief backs up and restores; it broadcasts the restored state to the others.
"""

from collections.abc import Sequence
from typing import Any

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.collectives import assign, broadcast, local_values, reduced
from tensorflowonspark.keras.exchange import callbacks_in, replaced
from tensorflowonspark.keras.workers import combine, compared, roles


def differing_statistics(model: keras.Model) -> set[int]:
    """Compare the weights and the optimizer of all workers; return the ids of the statistics that differ.

    Statistics (BatchNorm's) may differ, if batches were trained on before ``fit``.

    Raises
    ------
    SpecError
        On all workers, if anything else differs, with its name and a worker.
    """
    strategy: Any = model.distribute_strategy
    weights = [each for each in model.weights if "float" in str(each.dtype) or not _is_statistic(each)]
    statistics = {id(each) for each in weights if _is_statistic(each)}
    variables = [*weights, *getattr(model.optimizer, "variables", ())]
    values = zip(variables, local_values(strategy, variables), strict=True)
    found = combine(
        "model.fit", [(each.path, id(each) in statistics, _checksum(value[0])) for each, value in values], compared
    )
    if isinstance(found, tuple):
        worker, path = found
        _, workers = roles()
        raise SpecError(
            f"the models of {workers[0]} and {workers[worker]} differ before the first step (in {path!r}): "
            "what sets weights or the optimizer before fit must do so on all workers, with the same values"
        )
    return {id(variables[place]) for place in found}


def _is_statistic(weight: Any) -> bool:
    """Return whether a weight was made to be set by the layer itself; one that is frozen was made to be trained."""
    return not weight.trainable and not getattr(weight.value, "trainable", True)


def _checksum(value: Any) -> int:
    return int(google_crc32c.value(np.ascontiguousarray(value.numpy()).tobytes()))


_WRITING = tuple(
    getattr(keras.callbacks, name) for name in ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "TensorBoard")
)
_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def callbacks_of_worker(model: keras.Model, callbacks: Any, *added: keras.callbacks.Callback) -> Any:
    """Return the callbacks that this worker runs in place of those that the user gave to ``fit``, and those `added`."""
    is_chief = model.distribute_strategy.extended.should_checkpoint
    given = callbacks_in(callbacks)
    if any(isinstance(each, getattr(keras.callbacks, "OrbaxCheckpoint", ())) for each in given):  # not in older ones
        raise SpecError(
            "OrbaxCheckpoint on several workers needs Keras on JAX, where all of them write one checkpoint together "
            '(env={"KERAS_BACKEND": "jax"}): with TensorFlow use ModelCheckpoint, BackupAndRestore, or ctx.checkpoint'
        )
    kept = [each for each in given if is_chief or not isinstance(each, _WRITING)]
    # Statistics are averaged before other callbacks save the model; the broadcast follows the chief's restore.
    selected = [*added, KeepEqual(), *kept]
    backups = [each.backup_dir for each in given if isinstance(each, keras.callbacks.BackupAndRestore)]
    if backups:
        selected.append(BroadcastRestored(backups))
    return replaced(model, callbacks, selected)


class KeepEqual(keras.callbacks.Callback):
    """Refuses models that differ before the first step, and averages the statistics that steps change."""

    def __init__(self) -> None:
        super().__init__()
        self._equal: dict[int, list[tf.Tensor]] | None = None  # values that all workers have, by the variable's id

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Compare the models before the first step; other callbacks, which may restore them, have done so."""
        if self._equal is not None:
            return
        differing = differing_statistics(self.model)
        equal = [each for each in _floats(self.model.non_trainable_weights) if id(each) not in differing]
        self._equal = dict(zip(map(id, equal), local_values(self.model.distribute_strategy, equal), strict=True))
        if differing:
            self._average()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before other callbacks save the model."""
        self._average()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before the validation."""
        self._average()

    def _average(self) -> None:
        """Average what has changed on any worker; frozen weights, which no step changes, are not sent."""
        weights = _floats(self.model.non_trainable_weights)
        if not weights or self._equal is None:
            return
        strategy = self.model.distribute_strategy
        values = local_values(strategy, weights)
        changed = [int(_differ(self._equal.get(id(each)), own)) for each, own in zip(weights, values, strict=True)]
        (counts,) = reduced(strategy, _SUM, [[tf.constant(changed, tf.int32)]])
        chosen = [number for number, count in enumerate(counts.numpy()) if count]
        if chosen:
            weights = [weights[number] for number in chosen]
            assign(strategy, weights, reduced(strategy, _MEAN, [values[number] for number in chosen]))
            self._equal.update(zip(map(id, weights), local_values(strategy, weights), strict=True))


def _floats(weights: Sequence[Any]) -> list[Any]:
    return [each for each in weights if "float" in str(each.dtype)]


def _differ(known: Sequence[tf.Tensor] | None, values: Sequence[tf.Tensor]) -> bool:
    """Return whether the values of a variable's replicas are not those that are known of it."""
    if known is None:
        return True
    return any(not bool(tf.reduce_all(tf.equal(*pair))) for pair in zip(known, values, strict=True))


class BroadcastRestored(keras.callbacks.Callback):
    """Broadcasts the state that the chief restored to all workers: weights, optimizer, and the epoch to resume at.

    Parameters
    ----------
    directories : sequence of str
        Those from which the chief restores, if it finds them.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        super().__init__()
        self._directories = directories

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Broadcast the state, if the chief has restored any; a backup within the first epoch is of epoch 0."""
        model = self.model
        strategy = model.distribute_strategy
        is_chief = strategy.extended.should_checkpoint
        restored = is_chief and any(map(tf.io.gfile.exists, self._directories))
        (found,) = broadcast(strategy, is_chief, [[tf.constant([int(restored), model._initial_epoch or 0])]])
        restored, epoch = found.numpy().tolist()
        if not restored:
            return
        if not model.optimizer.built:
            with strategy.scope():
                model.optimizer.build(model.trainable_variables)
        variables = [*model.weights, *model.optimizer.variables]
        state = broadcast(strategy, is_chief, local_values(strategy, variables))
        assign(strategy, variables, state)
        model._initial_epoch = epoch
