"""The message with which each step of several workers begins.

Each worker sends the number of its real rows, what it does (a training step, a test step, the end of ``fit``), whether
it has a batch, and whether its program has stopped the training. All take the step, or none does: if none has a batch,
the pass ends; if one has stopped, the training ends at this step on all of them; if they do different things, each
raises an error that names both, where TensorFlow would wait for ever. All these messages have one key, so that a worker
that evaluates meets one that trains.
"""

from functools import partial
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.saving import outside_scope
from tensorflowonspark.keras.waiting import measured
from tensorflowonspark.keras.workers import roles

_GROUP, _KEY = 1_970_000_002, 1  # TensorFlow counts its own groups from 1
_DOES = {
    "train": "takes a training step", "test": "takes a step of evaluate", "epoch": "is at the end of an epoch",
    "end": "is at the end of fit",
}  # fmt: skip
_CODES = {name: float(code) for code, name in enumerate(_DOES, 1)}
_ROWS, _CODE, _BATCH, _STOP = range(4)
_UNEQUAL = "tensorflowonspark: the workers do not take this step together"


class StepBegin:
    """The begins of the steps of one function, in which the strategy connects the workers.

    The name is what the steps do: ``"train"`` or ``"test"``; ``"epoch"`` and ``"end"`` are the ends of an epoch and of
    ``fit``. `rank` is this worker's number, and `rows` has the real rows of each worker in the newest step, float32,
    shape ``(workers,)``.
    """

    def __init__(self, strategy: Any, name: str) -> None:
        role, self._roles = roles()
        self.rank = self._roles.index(role)
        self._code = _CODES[name]
        self._timeout = float(getattr(getattr(strategy, "_tfos_options", None), "timeout_seconds", None) or 0)
        with outside_scope(), tf.init_scope(), tf.device("/device:CPU:0"):
            self._table = tf.Variable(tf.zeros((len(self._roles), 4)), trainable=False)
            self.rows = tf.Variable(tf.zeros(len(self._roles)), trainable=False)
            self._stops = tf.Variable(0.0, trainable=False)
        self._meet_without_batch = tf.function(partial(self.meet, 0.0, has_batch=False), autograph=False)

    def stop(self) -> None:
        """Have all workers end the training instead of the next step."""
        self._stops.assign(1.0)

    def meet(self, own: Any, *, has_batch: bool = True) -> tf.Tensor:
        """Send this worker's number of rows, and return those of all workers, float32, shape ``(workers,)``."""
        with tf.device("/device:CPU:0"):
            row = tf.stack([tf.cast(own, tf.float32), self._code, float(has_batch), self._stops.value()])
            own_row = tf.one_hot(self.rank, len(self._roles))[:, None] * row
            table = measured(own_row, lambda: tf.raw_ops.CollectiveReduceV2(
                input=own_row, group_size=len(self._roles), group_key=_GROUP, instance_key=_KEY, ordering_token=[],
                merge_op="Add", final_op="Id", timeout_seconds=self._timeout,
            ))  # fmt: skip
            kept = [self._table.assign(table), self.rows.assign(table[:, _ROWS])]
            together = tf.reduce_all((table[:, _CODE] == self._code) & (table[:, _STOP] == 0.0))
            together &= tf.reduce_any(table[:, _BATCH] > 0.0)
            with tf.control_dependencies([each for each in kept if tf.is_symbolic_tensor(each)]):
                checked = tf.debugging.Assert(together, [_UNEQUAL])
            with tf.control_dependencies([] if checked is None else [checked]):
                return tf.identity(table[:, _ROWS])

    def meet_without_batch(self) -> tf.Tensor:
        """Do the same where this worker's data has ended."""
        return self._meet_without_batch()

    def meet_alone(self) -> None:
        """Wait for all workers, outside of a step; raise what they do if it is not the same."""
        try:
            self.meet(tf.zeros([]))
        except tf.errors.InvalidArgumentError as error:
            self.explain(error)

    def any_stops(self, stops: bool) -> bool:
        """Return whether the program has stopped the training on any worker, at the end of an epoch."""
        self._stops.assign(float(stops))
        try:
            self.meet(tf.zeros([]))
        except tf.errors.InvalidArgumentError as error:
            self.explain(error)
            return True
        return False

    def explain(self, error: Exception) -> None:
        """Raise why the workers have not taken a step together, unless one of them has stopped the training.

        If they do different things, that is a `SpecError`, and if no worker has another batch, a
        ``tf.errors.OutOfRangeError``; any other error is raised as it is.
        """
        if _UNEQUAL not in str(error):
            raise error
        table = self._table.numpy()
        self._stops.assign(0.0)
        names = {code: name for name, code in _CODES.items()}
        does = [_DOES[names[float(code)]] for code in table[:, _CODE]]
        other = next((number for number, each in enumerate(does) if each != does[self.rank]), None)
        if other is not None:
            raise SpecError(
                f"{self._roles[self.rank]} {does[self.rank]} while {self._roles[other]} {does[other]}: fit and "
                "evaluate are calls of all workers together, also in a callback; a chief that evaluates by itself does "
                "so with a copy of the model that is made outside of the strategy's scope"
            ) from error
        if not table[:, _STOP].any() and not table[:, _BATCH].any():
            raise tf.errors.OutOfRangeError(None, None, "no worker has another batch") from None
