"""Variables that count, assigned outside of a replica: their parts add up to the value that was assigned.

Replicas have parts of a variable that is summed when it is read, as those of metrics are. TensorFlow gives each of them
the value divided by the number of replicas, in the variable's own type: of an integer that can't be divided evenly the
rest is lost, and 1 becomes 0 on two replicas.
"""

from types import ModuleType
from typing import Any

__all__ = ["keep_remainders"]


def keep_remainders(values_util: ModuleType) -> None:
    """Have the first replicas take one more each (called after the import of TensorFlow's ``values_util``)."""
    original = values_util.on_read_assign_cross_replica

    def on_read_assign_cross_replica(var: Any, value: Any, read_value: bool = True) -> Any:
        import tensorflow as tf  # it is complete by now

        if var.aggregation != tf.VariableAggregation.SUM or not var.dtype.is_integer:
            return original(var, value, read_value)
        strategy = var.distribute_strategy
        with values_util.distribute_lib.enter_or_assert_strategy(strategy):
            if not tf.distribute.in_cross_replica_context():
                return original(var, value, read_value)
            whole = tf.cast(value, var.dtype)
            replicas = tf.constant(strategy.num_replicas_in_sync, var.dtype)
            parts = iter(
                [
                    whole // replicas + tf.cast(tf.constant(replica, var.dtype) < whole % replicas, var.dtype)
                    for replica in _local_replicas(strategy)
                ]
            )

            def assign(device: str, variable: Any, _: Any) -> Any:  # called for each of this worker's replicas in turn
                return values_util.assign_on_device(device, variable, next(parts))

            return values_util.assign_on_each_device(var, assign, whole, read_value)

    values_util.on_read_assign_cross_replica = on_read_assign_cross_replica  # type: ignore[attr-defined]


def _local_replicas(strategy: Any) -> list[int]:
    """Return the numbers of this worker's replicas among those of all workers."""
    replicas: list[int] = []

    def note(context: Any) -> float:
        replicas.append(context.replica_id_in_sync_group)
        return 0.0

    strategy.experimental_distribute_values_from_function(note)
    return replicas
