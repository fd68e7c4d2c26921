"""The Keras callback of a checkpoint, which resumes from the newest one and writes one after each epoch.

All workers run it, with Keras 3 or ``tf_keras``: each restores the checkpoint that the chief selects, and all take part
in writing (`node.checkpoint`). It keeps the states of the other callbacks of a ``fit`` (`callback_state`) and copies
their files, so it is called after them, wherever it stands among them.
"""

import logging
import sys
from typing import Any

from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras.callback_state import CallbackStates, has_stopped
from tensorflowonspark.keras.hooks import callbacks_module, keras_backend, wrap
from tensorflowonspark.keras.jax.training_state import JaxState
from tensorflowonspark.keras.pass_steps import skip_steps
from tensorflowonspark.keras.private_names import problems_of
from tensorflowonspark.keras.repairs import GOES_ON

_log = logging.getLogger(__name__)
_prepared: list[Any] = []  # classes of lists of callbacks that call this module's last


def resuming(checkpoints: Any, every: int | None) -> Any:
    """Return the callback of a `Checkpoints`, which also writes after `every` steps unless that is None."""
    kind, arguments = (_Resuming, ()) if every is None else (_ResumingInEpochs, (every,))
    callbacks = callbacks_module()
    _call_last(callbacks.CallbackList)
    return type(kind.__name__, (kind, callbacks.Callback), {})(checkpoints, *arguments)


def _call_last(callback_list: Any) -> None:
    """Have a list call this module's callbacks after the others, whose states and files they keep."""
    if callback_list in _prepared:
        return
    _prepared.append(callback_list)

    def begin(wrapped: Any, given: Any, /, *args: Any, **kwargs: Any) -> Any:
        own = [each for each in given.callbacks if isinstance(each, _Resuming)]
        others = [each for each in given.callbacks if each not in own]
        given.callbacks[:] = [*others, *own]
        for each in own:
            each.others = others
        return wrapped(*args, **kwargs)

    def end_step(wrapped: Any, given: Any, /, batch: int, logs: Any = None) -> Any:
        result = wrapped(batch, logs)
        for each in given.callbacks:
            if isinstance(each, _Resuming):
                each.step_ended(batch)
        return result

    wrap(callback_list, "on_train_begin", begin)
    wrap(callback_list, "on_train_batch_end", end_step)  # a callback for batches would wait for each step's metrics


class _Resuming:
    model: Any
    params: Any
    stops_nothing = True  # for `keras.jax.agreement`

    def __init__(self, checkpoints: Any) -> None:
        super().__init__()
        self.others: list[Any] = []  # the other callbacks of this ``fit``, and Keras's own History
        self._checkpoints = checkpoints
        self._state: Any = None
        self._resumed = False
        self._epoch = 0
        self._first = 0  # the batch with which the first epoch begins

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's names
        """Restore in the first ``fit`` that is not complete; in later ones the program has the newest state itself."""
        if self._resumed:
            return
        self._state, states = _state(self.model), CallbackStates(self.others)
        states.check()
        saved = self._checkpoints._restore(self._state, is_built=_is_keras_3(self.model), beside=states.read)
        place = self._checkpoints._resume_at(saved) if saved else (0, 0)
        self._resumed = place is not None
        if place is None:  # another feed's training is to be resumed, and this one's is complete
            _begin_at(self.model, self.params["epochs"], 0)
        elif saved:
            epoch, batch = place
            if epoch or batch:  # else these weights are the beginning of another training
                states.set()
            if has_stopped(self.others) or self._checkpoints._was_ended(saved):
                epoch, batch = max(epoch, self.params["epochs"]), 0
            if epoch >= self.params["epochs"]:
                text = (
                    "the checkpoint %s has all %d epochs: fit trains nothing (clear() or another directory starts over)"
                )
                _log.warning(text, saved.name, self.params["epochs"])
            self._first = batch
            _begin_at(self.model, epoch, batch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Record the epoch, which is not complete yet."""
        self._epoch = epoch

    def step_ended(self, batch: int) -> None:
        """Write a checkpoint after a step, if a host goes; after the last one of the epoch, the epoch's follows."""
        if self._checkpoints.is_due() and batch + 1 != self.params.get("steps"):
            self._save(batch + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write a checkpoint, and copy the files that other callbacks wrote."""
        self._epoch = epoch + 1
        self._save(metrics=logs or {})
        self._checkpoints.mirror()
        if self._checkpoints.is_over():
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Let the next ``fit`` begin at its own first epoch."""
        _begin_at(self.model, 0, 0)
        self._checkpoints.mirror()

    def _average_statistics(self) -> None:
        """Have all workers keep the same statistics of batches, if Keras on TensorFlow trains on several."""
        ours = sys.modules.get("tensorflowonspark.keras.callbacks")
        if ours is not None:
            for each in self.others:
                if isinstance(each, ours.KeepEqual):
                    each.average_statistics()

    def _save(self, batch: int = 0, metrics: Any = None) -> None:
        # Rows that come in the order of their arrival can be resumed only after all. An epoch of a given number of
        # steps ends before.
        if self._checkpoints._in_first_pass() and (batch or self.params.get("steps")):
            return
        if batch:  # at the end of an epoch that has been done
            self._average_statistics()
        beside = CallbackStates(self.others).write
        measured = self._checkpoints._best.fields(metrics, self.model)
        self._checkpoints._save(self._state, _steps(self.model), self._epoch, batch, measured, beside)


class _ResumingInEpochs(_Resuming):
    """Writes within epochs too; a separate class, since parameter servers refuse callbacks for batches."""

    def __init__(self, checkpoints: Any, every: int) -> None:
        super().__init__(checkpoints)
        self._every = every
        self._seen = 0  # batches since the last checkpoint
        self._last = -1  # the last seen batch of the epoch; one execution may have several

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count from the first batch."""
        super().on_epoch_begin(epoch, logs)
        self._last, self._first = self._first - 1, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Write a checkpoint, if it is due."""
        self._seen += batch - self._last
        self._last = batch
        if self._seen >= self._every:
            self._seen = 0
            self._save(batch + 1)


def _steps(model: Any) -> int:
    if keras_backend() == "jax":
        model.jax_state_sync()  # within an epoch Keras holds the values elsewhere
    return int(model.optimizer.iterations.numpy())


def _state(model: Any) -> Any:
    """Return all state of the training: weights, the optimizer's variables, and seeds, which Keras 3 tracks itself."""
    if keras_backend() == "jax":
        return JaxState(model)
    import tensorflow as tf

    if not getattr(model.optimizer, "built", True):
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    if not _is_keras_3(model):
        return tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    weights = {id(each) for each in model.weights}
    seeds = [each for each in model.variables if id(each) not in weights]
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer, seeds=seeds)


def _is_keras_3(model: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "keras" for kind in type(model).__mro__)


def _begin_at(model: Any, epoch: int, batch: int) -> None:
    """Have ``fit`` begin at this epoch and step, or if both are 0, at its own first epoch."""
    if _is_keras_3(model):
        for problem in problems_of([GOES_ON]):  # else epochs would begin at 0 without a word
            raise RequirementError(problem)
        model._initial_epoch = epoch or None
        skip_steps(batch)
    else:
        model._training_state = _Counters(epoch, batch) if epoch or batch else None


class _Counters:
    """Stand-in for the object from which ``tf_keras`` gets the epoch and step to begin at."""

    def __init__(self, epoch: int, batch: int) -> None:
        self._counters = epoch, batch

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._counters
