"""Collective operations of workers that train together.

A ``MultiWorkerMirroredStrategy`` ignores the size of packs in its own options when a replica reduces gradients.
`keep_options` repairs that.
"""

from __future__ import annotations  # TensorFlow imports this module while it is incomplete itself

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.row_kinds import FREE, mark

_IN_GRAPH = "_tfos_sum"  # attribute of a strategy: `_sum` as a graph
_PACK_BYTES = 1 << 26  # at most, of values that are sent together


def local_values(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> list[list[tf.Tensor]]:
    """Return each variable's values, one for each replica of this worker (its GPUs, or its one CPU)."""
    locals_ = [strategy.experimental_local_results(variable.value) for variable in variables]
    return [[tf.convert_to_tensor(value) for value in values] for values in locals_]


def reduced(
    strategy: tf.distribute.Strategy, operation: tf.distribute.ReduceOp, values: Sequence[Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return the reduction of each value over all replicas of all workers; values of one type are sent together."""
    results: list[Any] = [None] * len(values)
    for pack in _packs([each[0] for each in values]):
        replicas = range(max(len(values[number]) for number in pack))
        flat = [
            tf.concat([tf.reshape(values[number][replica % len(values[number])], [-1]) for number in pack], 0)
            for replica in replicas
        ]
        distributed = strategy.experimental_distribute_values_from_function(
            lambda context, flat=flat: flat[context.replica_id_in_sync_group % len(flat)]
        )
        total = strategy.reduce(operation, distributed, axis=None)
        shapes = [values[number][0].shape for number in pack]
        parts = tf.split(total, [shape.num_elements() for shape in shapes])
        for number, part, shape in zip(pack, parts, shapes, strict=True):
            results[number] = tf.reshape(part, shape)
    return results


def _packs(values: Sequence[tf.Tensor]) -> list[list[int]]:
    """Return the numbers of the values that are sent together: of one type, and so many bytes at most."""
    packs: list[list[int]] = []
    newest: dict[tf.DType, tuple[list[int], int]] = {}  # the newest pack of each type, and its bytes
    for number, value in enumerate(values):
        size = value.shape.num_elements() * value.dtype.size
        pack, used = newest.get(value.dtype, ([], _PACK_BYTES))
        if used + size > _PACK_BYTES:
            pack, used = [], 0
            packs.append(pack)
        pack.append(number)
        newest[value.dtype] = pack, used + size
    return packs


def broadcast(
    strategy: tf.distribute.Strategy, is_chief: bool, values: Sequence[Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return the values of the chief's first replica on all workers, as a sum in which all others are zero."""
    others = len(strategy.extended.worker_devices) - 1
    own = [[each[0] if is_chief else tf.zeros_like(each[0]), *[tf.zeros_like(each[0])] * others] for each in values]
    return reduced(strategy, tf.distribute.ReduceOp.SUM, own)


def all_sum(strategy: tf.distribute.Strategy, values: Sequence[Any]) -> list[Any]:
    """Return the sum of each value over all workers, in a step of each; gradients flow through it.

    The strategy is a ``MultiWorkerMirroredStrategy`` with one device per worker. Each worker gives as many values, with
    the same shapes. (Of ``tf.IndexedSlices`` each may have other rows, and the sum of those has no gradient of its
    own.)
    """
    dense = [number for number, each in enumerate(values) if not isinstance(each, tf.IndexedSlices)]
    sparse = [number for number in range(len(values)) if number not in dense]
    totals: list[Any] = [None] * len(values)
    for places, add in ((dense, _differentiable_sum), (sparse, _sum)):
        if places:
            for place, total in zip(places, add(strategy, [values[place] for place in places]), strict=True):
                totals[place] = total
    return totals


def _sum(strategy: tf.distribute.Strategy, values: Sequence[Any]) -> list[Any]:
    if not tf.inside_function():  # as at the end of an epoch: TensorFlow warns of each run without a graph
        if not hasattr(strategy, _IN_GRAPH):
            setattr(strategy, _IN_GRAPH, tf.function(partial(_sum, strategy), autograph=False))
        return list(getattr(strategy, _IN_GRAPH)(list(values)))

    @tf.autograph.experimental.do_not_convert
    def add(values: list[Any]) -> Any:
        values = tf.nest.map_structure(tf.identity, values, expand_composites=True)  # on the device that exchanges them
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    return list(strategy.run(add, args=(list(values),)))


def _differentiable_sum(strategy: tf.distribute.Strategy, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    @tf.custom_gradient
    def summed(*values: tf.Tensor) -> Any:
        # A worker's value counts in the sums of all workers, and so in what follows from each.
        return _sum(strategy, values), lambda *upstream: _differentiable_sum(strategy, upstream)

    totals = list(summed(*map(tf.convert_to_tensor, values)))
    return [mark(each, FREE) if tf.is_symbolic_tensor(each) else each for each in totals]


def assign(strategy: tf.distribute.Strategy, variables: Sequence[Any], values: Sequence[tf.Tensor]) -> None:
    """Assign values to variables, each on all replicas of this worker."""
    with strategy.scope():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def keep_options(tensorflow: ModuleType) -> None:
    """Reduce in replicas with the strategy's own options, as elsewhere (called after the import of TensorFlow)."""

    def all_reduce(call: Any, replica: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        own = getattr(replica.strategy, "_tfos_options", None)  # of a MultiWorkerMirroredStrategy
        return call(reduce_op, value, options if own is None else own.merge(options))

    wrap(tensorflow, "distribute.ReplicaContext.all_reduce", all_reduce)
