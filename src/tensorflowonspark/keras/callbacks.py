"""Callbacks that keep the models of several workers equal.

- **The first step.** All workers must begin with the same weights and optimizer; a difference is an error.
- **Statistics.** In Keras 3 each worker has its own statistics of batches (BatchNorm's moving mean and variance). They
  are averaged over the workers after each epoch and before each evaluation and checkpoint, so that all workers save,
  evaluate and predict with the same model. A warning names those of a program's own layers that were different.
- **The end of an epoch.** What has made the models differ since, as a callback on one worker, is an error. All workers
  end the training at the same step, also if one of them has stopped it.
- **Files.** All workers have the same callbacks, often with one shared directory. Those that write files run on the
  chief only.
- **BackupAndRestore.** Only the chief backs up and restores; it broadcasts the restored state to the others.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.exchanging_callbacks import callbacks_in, replaced
from tensorflowonspark.keras.step_begin import StepBegin
from tensorflowonspark.keras.sublayers import all_sublayers, own_weights
from tensorflowonspark.keras.tensorflow_collectives import assign, broadcast, local_values, reduced
from tensorflowonspark.keras.worker_step import is_statistic
from tensorflowonspark.keras.workers import combine, compared, roles

_log = logging.getLogger(__name__)


def differing_statistics(model: keras.Model) -> set[int]:
    """Compare the weights and the optimizer of all workers before the first step; return the ids of what differs.

    Statistics (BatchNorm's) may differ, if batches were trained on before ``fit``. Anything else is a `SpecError` on
    all workers, with its name and a worker.
    """
    strategy: Any = model.distribute_strategy
    variables = _compared_variables(model)
    statistics = {id(each) for each in model.weights if is_statistic(each)}
    values = zip(variables, local_values(strategy, variables), strict=True)
    found = combine(
        "model.fit", [(each.path, id(each) in statistics, _checksum(value[0])) for each, value in values], compared
    )
    _refuse_differing(found, "before the first step", "sets weights or the optimizer before fit must do so")
    return {id(variables[place]) for place in found}


def refuse_drift(model: keras.Model) -> None:
    """Compare the weights and the optimizer of all workers at the end of an epoch, or of ``fit``.

    If they differ by more than rounding, it is a `SpecError` on all workers, with the name of a variable and a worker.
    """
    strategy: Any = model.distribute_strategy
    # The optimizer's first: a rate is named before the weights that it has moved.
    variables = [
        *getattr(model.optimizer, "variables", ()),
        *(each for each in model.weights if not is_statistic(each)),
    ]
    values = local_values(strategy, variables)
    found = combine(
        "model.fit", [(each.path, False, _figures(value[0])) for each, value in zip(variables, values, strict=True)],
        partial(compared, same=_nearly),
    )  # fmt: skip
    _refuse_differing(
        found, "at the end of an epoch", "sets weights, the optimizer or its rate in a callback must do so"
    )


def _compared_variables(model: keras.Model) -> list[Any]:
    weights = [each for each in model.weights if "float" in str(each.dtype) or not is_statistic(each)]
    return [*weights, *getattr(model.optimizer, "variables", ())]


def _refuse_differing(found: Any, when: str, what: str) -> None:
    if isinstance(found, tuple):
        worker, path = found
        _, workers = roles()
        raise SpecError(
            f"the models of {workers[0]} and {workers[worker]} differ {when} (in {path!r}): what {what} on all "
            "workers, with the same values"
        )


def _figures(value: Any) -> tuple[float, float]:
    """Return the sum of a variable's values, and that of their sizes."""
    numbers = np.asarray(value.numpy(), np.float64) if value.dtype != tf.string else np.zeros(1)
    return float(numbers.sum()), float(np.abs(numbers).sum())


def _nearly(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether two variables differ by no more than the rounding of different processors."""
    limit = _DRIFT * max(one[1], other[1])
    return all(a == b or abs(a - b) <= limit or (np.isnan(a) and np.isnan(b)) for a, b in zip(one, other, strict=True))


def _checksum(value: Any) -> int:
    return int(google_crc32c.value(np.ascontiguousarray(value.numpy()).tobytes()))


_WRITING = tuple(
    getattr(keras.callbacks, name) for name in ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "TensorBoard")
)
_DRIFT = 1e-3  # of the sizes of a variable's values
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
    return replaced(model, callbacks, [*selected, StopTogether()])


class StopTogether(keras.callbacks.Callback):
    """Has all workers end the training at the same step, also if only one of them has stopped it; called last."""

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False
        self._begins: dict[str, StepBegin] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Prepare to meet the other workers."""
        strategy = self.model.distribute_strategy
        self._begins = {name: StepBegin(strategy, name) for name in ("epoch", "end")}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Have the next step end the training on all workers; until then this one goes on with them."""
        if self.model.stop_training:
            self.model.stop_training, self._stopped = False, True
            self.model.train_function.begin.stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """End the training if it was stopped on any worker."""
        self.model.stop_training = self._begins["epoch"].any_stops(self._stopped or self.model.stop_training)
        self._stopped = False
        refuse_drift(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Wait for all workers, of which another may evaluate alone, and compare the models that ``fit`` leaves."""
        self._begins["end"].meet_alone()
        refuse_drift(self.model)


class KeepEqual(keras.callbacks.Callback):
    """Refuses models that differ before the first step, and averages the statistics that steps change."""

    def __init__(self) -> None:
        super().__init__()
        self._equal: dict[int, list[tf.Tensor]] | None = None  # values that all workers have, by the variable's id
        self._named: set[int] = set()  # the ids of statistics with a warning

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Compare the models before the first step; other callbacks, which may restore them, have done so."""
        if self._equal is not None:
            return
        differing = differing_statistics(self.model)
        equal = [each for each in _floats(self.model.non_trainable_weights) if id(each) not in differing]
        self._equal = dict(zip(map(id, equal), local_values(self.model.distribute_strategy, equal), strict=True))
        if differing:
            self.average_statistics()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before other callbacks save the model."""
        self.average_statistics()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before the validation."""
        self.average_statistics()

    def average_statistics(self) -> None:
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
            own = [values[number] for number in chosen]
            assign(strategy, weights, reduced(strategy, _MEAN, own))
            averages = local_values(strategy, weights)
            self._equal.update(zip(map(id, weights), averages, strict=True))
            self._warn(weights, own, averages)

    def _warn(self, weights: Sequence[Any], values: Sequence[Any], averages: Sequence[Any]) -> None:
        """Name the statistics that each worker has computed of its own rows, once; BatchNormalization has such."""
        layers = [each for each in all_sublayers(self.model) if not isinstance(each, keras.layers.BatchNormalization)]
        own = {id(each) for layer in layers for each in own_weights(layer)} - self._named
        places = [place for place, each in enumerate(weights) if id(each) in own]
        if not places:
            return
        differ = [int(not _nearly(_figures(values[place][0]), _figures(averages[place][0]))) for place in places]
        (counts,) = reduced(self.model.distribute_strategy, _SUM, [[tf.constant(differ, tf.int32)]])
        named = [weights[place] for place, count in zip(places, counts.numpy(), strict=True) if count]
        self._named.update(map(id, named))
        if named and self.model.distribute_strategy.extended.should_checkpoint:
            _log.warning(
                "each worker has computed %s of its own rows, and now all have the average: computed of means and sums "
                "over rows, or with tfos.keras.all_mean, it is what one process computes",
                ", ".join(each.path for each in named),
            )


def _floats(weights: Sequence[Any]) -> list[Any]:
    return [each for each in weights if "float" in str(each.dtype)]


def _differ(known: Sequence[tf.Tensor] | None, values: Sequence[tf.Tensor]) -> bool:
    """Return whether the values of a variable's replicas are not those that are known of it."""
    if known is None:
        return True
    return any(not bool(tf.reduce_all(tf.equal(*pair))) for pair in zip(known, values, strict=True))


class BroadcastRestored(keras.callbacks.Callback):
    """Broadcasts the state that the chief restored to all workers: weights, optimizer, and the epoch to resume at.

    The chief restores from the given directories, if it finds them.
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
