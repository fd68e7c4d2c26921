"""``predict`` of a model with divided tables: each worker has rows of its own, and all look up rows in each step.

Workers may have different numbers of batches. Before each call of Keras's function for some steps they agree on the
largest number of steps that any of them takes, and the others take steps without rows, until all are done.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.embedding.row_exchange import RowExchange
from tensorflowonspark.keras.sublayers import all_sublayers

# How many calls of `predict` run on all workers together. A context variable would not reach the replicas of a
# strategy, which look up rows in threads of their own.
_predict_calls = 0


def is_predicting_together() -> bool:
    """Return whether ``predict`` runs on all workers together."""
    return _predict_calls > 0


@contextmanager
def predicting_together(model: Any) -> Iterator[None]:
    """Have all workers take part in each step of ``predict``, which the block calls; at its end wait for all.

    Models without divided tables predict as ever, and those whose tables are not built yet.
    """
    global _predict_calls  # noqa: PLW0603 - see its comment
    exchanges = (getattr(each, "_exchange", None) for each in all_sublayers(model))
    exchange = next((each for each in exchanges if each is not None), None)
    if exchange is None:
        yield
        return
    model.make_predict_function()
    original = model.predict_function
    steps = _Steps(exchange, original)
    model.predict_function = steps.take
    _predict_calls += 1
    try:
        yield
        steps.finish()
    finally:
        _predict_calls -= 1
        model.predict_function = original


class _Steps:
    """The steps of one ``predict``, on which the workers agree.

    Keras's function takes a list of batches, and returns the results of all.
    """

    def __init__(self, exchange: RowExchange, function: Callable[[Sequence[Any]], Any]) -> None:
        self._exchange = exchange
        self._function = function
        self._empty: Any = None  # a batch without rows

    def take(self, batches: Sequence[Any]) -> Any:
        """Predict some batches, and take as many steps as the worker with the most."""
        if self._empty is None:
            self._empty = tf.nest.map_structure(_without_rows, batches[0])
        steps = self._exchange.most_steps(len(batches))
        return self._function([*batches, *[self._empty] * (steps - len(batches))])

    def finish(self) -> None:
        """Take steps without rows until all workers are done; Keras refuses a worker without any batch before."""
        while steps := self._exchange.most_steps(0):
            self._function([self._empty] * steps)


def _without_rows(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.slice(value, tf.zeros_like(value.dense_shape), [0, *value.dense_shape[1:]])
    return value[:0]
