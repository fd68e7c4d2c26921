"""Collective operations of workers that train together, and counters that are summed over replicas.

A variable that is summed when it is read, as those of metrics are, has a part on each replica. TensorFlow assigns each
the value divided by the number of replicas, in the variable's own type: the remainder of an integer is lost, and 1
becomes 0 on two replicas. `keep_remainders` repairs that.

A ``MultiWorkerMirroredStrategy`` ignores the size of packs in its own options when a replica reduces gradients.
`keep_options` repairs that.
"""

from __future__ import annotations  # TensorFlow imports this module while it is incomplete itself

from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.hooks import wrap

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


def assign(strategy: tf.distribute.Strategy, variables: Sequence[Any], values: Sequence[tf.Tensor]) -> None:
    """Assign values to variables, each on all replicas of this worker."""
    with strategy.scope():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def keep_remainders(values_util: ModuleType) -> None:
    """Assign the remainder to the first replicas, one each (called after the import of ``values_util``)."""
    original = values_util.on_read_assign_cross_replica

    def on_read_assign_cross_replica(var: Any, value: Any, read_value: bool = True) -> Any:
        if var.aggregation != tf.VariableAggregation.SUM or not var.dtype.is_integer:
            return original(var, value, read_value)
        strategy = var.distribute_strategy
        with nullcontext() if tf.distribute.has_strategy() else strategy.scope():
            if not tf.distribute.in_cross_replica_context():
                return original(var, value, read_value)
            whole = tf.cast(value, var.dtype)
            replicas = tf.constant(strategy.num_replicas_in_sync, var.dtype)
            updates = []
            for replica, own in zip(_local_replicas(strategy), strategy.experimental_local_results(var), strict=True):
                part = whole // replicas + tf.cast(tf.constant(replica, var.dtype) < whole % replicas, var.dtype)
                with tf.device(own.device):
                    updates.append(own.assign(part, read_value=False))
            done = tf.group(updates)
            if not read_value:
                return done
            with tf.control_dependencies([done] if done is not None else []):
                return var.read_value()

    values_util.on_read_assign_cross_replica = on_read_assign_cross_replica  # type: ignore[attr-defined]


def keep_options(tensorflow: ModuleType) -> None:
    """Reduce in replicas with the strategy's own options, as elsewhere (called after the import of TensorFlow)."""

    def all_reduce(call: Any, replica: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        own = getattr(replica.strategy, "_tfos_options", None)  # of a MultiWorkerMirroredStrategy
        return call(reduce_op, value, options if own is None else own.merge(options))

    wrap(tensorflow, "distribute.ReplicaContext.all_reduce", all_reduce)


def _local_replicas(strategy: Any) -> list[int]:
    """Return the numbers of this worker's replicas among those of all workers."""
    replicas: list[int] = []

    def note(context: Any) -> float:
        replicas.append(context.replica_id_in_sync_group)
        return 0.0

    strategy.experimental_distribute_values_from_function(note)
    return replicas
