"""One call of a ``ShardedEmbedding`` in a step: rows forwards, gradients to their owners and an update backwards.

Keras asks for the gradients of its own variables only, and the table is none. So the rows depend on a scalar variable
of the layer, the *anchor*, whose gradient is zero: the function that computes it sends the gradients of the rows.

A layer that is called several times in a step takes one step with the sum of all gradients. Its calls share a *token*,
which depends on the anchor: the gradient of the token is computed after those of all calls, and updates the rows.
"""

from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tensorflowonspark.keras.embedding.row_exchange import RowExchange, cpu
from tensorflowonspark.keras.embedding.table import Table
from tensorflowonspark.keras.hooks import wrap

# The factor of the loss in the step that is computed (of a LossScaleOptimizer), and the graph it belongs to.
_loss_scale: ContextVar[tuple[Any, Any]] = ContextVar("factor of the loss", default=(None, None))


class Lookup:
    """The calls of one layer, with this worker's rows.

    Without an exchange there are no other workers.
    """

    def __init__(self, table: Table, exchange: RowExchange | None) -> None:
        self.table = table
        self.exchange = exchange
        self._token: Any = None
        self._last: tuple[Any, int] = None, 0  # the graph of the last call, and the number of the call in it
        # Ids and gradients that the token's gradient applies, with the number of their call.
        self._pending: list[tuple[tf.Tensor, tf.Tensor, int]] = []

    def rows(self, ids: tf.Tensor, anchor: tf.Tensor, dtype: Any) -> tf.Tensor:
        """Return the rows of ids, which may repeat: of shape ``(n, dim)``, for int64 or strings of shape ``(n,)``.

        `anchor` is the value of the layer's anchor. Rows are sent and returned in `dtype`.
        """
        with cpu():
            table, exchange = self.table, self.exchange
            token = self._shared_token(anchor)
            site = self._number(anchor)
            unique, places = tf.unique(ids)
            unique = table.keys(unique)

            @tf.custom_gradient
            def of_unique(token: tf.Tensor) -> Any:
                with self._in_order():
                    requests = exchange.request(unique, table.owners(unique), site) if exchange else None
                owned = unique if requests is None else tf.reshape(requests.received, [-1, *unique.shape[1:]])
                rows = tf.cast(table.read(owned), dtype)
                if exchange and requests:
                    rows = exchange.answer(requests, rows)
                rows = tf.ensure_shape(tf.gather(rows, places), [None, table.dim])

                def gradient(upstream: Any) -> tf.Tensor:
                    with cpu(), self._in_order():
                        upstream = tf.cast(tf.convert_to_tensor(upstream), tf.float32)
                        sums = tf.math.unsorted_segment_sum(upstream, places, tf.shape(unique)[0])
                        if exchange and requests:
                            sums = tf.cast(exchange.send_gradients(requests, tf.cast(sums, dtype)), tf.float32)
                        self._pending.append((owned, sums, site))
                        with tf.control_dependencies([sums]):
                            return tf.zeros_like(token)

                return rows, gradient

            return of_unique(token)

    def _shared_token(self, anchor: tf.Tensor) -> tf.Tensor:
        """Return the token of the current step: the last one, if it was made in this graph and by the same tapes."""
        if self._token is None or _graph(self._token) is not _graph(anchor) or not _is_recorded(self._token):
            self._token = self._new_token(anchor)
        return self._token

    def _number(self, anchor: tf.Tensor) -> int:
        """Return the number of this call among those of a graph, which may run at once; eager ones don't."""
        graph = _graph(anchor)
        while graph is not None and isinstance(getattr(graph, "outer_graph", None), tf.__internal__.FuncGraph):
            graph = graph.outer_graph
        last, number = self._last
        self._last = graph, 0 if graph is None or graph is not last else number + 1
        return self._last[1]

    def _in_order(self) -> Any:
        """Have the operations of a block wait for the end of an earlier call of the same function in a step.

        TensorFlow runs calls of functions that change one variable in their order. Without it, both would exchange rows
        at once, under the same keys.
        """
        if self.exchange is None:
            return nullcontext()
        self.table.calls.assign_add(1)
        return tf.control_dependencies([self.table.calls.read_value()])

    def _new_token(self, anchor: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def token(anchor: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                with cpu(), tf.control_dependencies([upstream]):
                    self._update()
                    return tf.zeros_like(anchor)

            return tf.zeros_like(anchor), gradient

        return token(anchor)

    def _update(self) -> None:
        pending, self._pending = self._pending, []
        ids, gradients = (tf.concat([each[part] for each in pending], 0) for part in range(2))
        scale, graph = _loss_scale.get()
        if scale is None or graph is not _graph(gradients):
            self.table.update(ids, gradients)
            return
        gradients = gradients / tf.cast(scale, tf.float32)
        overflow = tf.logical_not(tf.reduce_all(tf.math.is_finite(gradients)))
        if self.exchange is not None:
            overflow = self.exchange.any_of(overflow, pending[0][2])

        def update() -> tf.Tensor:
            self.table.update(ids, gradients)
            return tf.constant(True)

        tf.cond(overflow, lambda: tf.constant(False), update)


def _graph(tensor: tf.Tensor) -> Any:
    """Return the graph of a tensor, or None if it is eager."""
    return getattr(tensor, "graph", None)


def _is_recorded(tensor: tf.Tensor) -> bool:
    """Return whether a tape that is recording now has recorded how a tensor was made."""
    from tensorflow.python.eager.record import should_record_backprop

    return bool(should_record_backprop([tensor]))


def _scale_loss(wrapped: Any, _optimizer: Any, /, loss: Any) -> Any:
    scaled = wrapped(loss)
    if scaled is loss or not tf.is_tensor(scaled):
        _loss_scale.set((None, None))
    else:
        factor = wrapped(tf.ones([]))
        _loss_scale.set((factor, _graph(factor)))
    return scaled


for _class in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
    wrap(_class, "scale_loss", _scale_loss)
