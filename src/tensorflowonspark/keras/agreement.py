"""Values that workers which train together hand to each other; all of them must call the same functions in turn."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["any_of", "assign", "broadcast", "broadcast_text", "local_values", "reduced"]

_TEXT_BYTES = 256


def local_values(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> list[list[tf.Tensor]]:
    """Return each variable's values, one for each replica of this worker (its GPUs, or its one CPU)."""
    locals_ = [strategy.experimental_local_results(variable.value) for variable in variables]
    return [[tf.convert_to_tensor(value) for value in values] for values in locals_]


def reduced(
    strategy: tf.distribute.Strategy, operation: tf.distribute.ReduceOp, values: Sequence[Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return the reduction of each value over all replicas of all workers."""

    def of_replica(value: Sequence[tf.Tensor]) -> Callable[[Any], tf.Tensor]:
        return lambda context: value[context.replica_id_in_sync_group % len(value)]

    distributed = [strategy.experimental_distribute_values_from_function(of_replica(value)) for value in values]
    return [strategy.reduce(operation, value, axis=None) for value in distributed]


def broadcast(
    strategy: tf.distribute.Strategy, is_chief: bool, values: Sequence[Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return the values of the chief's first replica on all workers: the sum of them and of nothing else."""
    own = [
        [value if is_chief and not place else tf.zeros_like(value) for place, value in enumerate(each)]
        for each in values
    ]
    return reduced(strategy, tf.distribute.ReduceOp.SUM, own)


def assign(strategy: tf.distribute.Strategy, variables: Sequence[Any], values: Sequence[tf.Tensor]) -> None:
    """Give variables their values, each on all replicas of this worker."""
    with strategy.scope():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def broadcast_text(strategy: tf.distribute.Strategy, is_chief: bool, text: str) -> str:
    """Return the chief's text on all workers; it has no more than 256 bytes."""
    own = text.encode().ljust(_TEXT_BYTES, b"\0")
    (codes,) = broadcast(strategy, is_chief, [[tf.constant(list(own), tf.int32)]])
    return bytes(codes.numpy().tolist()).rstrip(b"\0").decode()


def any_of(strategy: tf.distribute.Strategy, flag: bool) -> bool:
    """Return, on all workers, whether the flag is set on any of them."""
    (count,) = reduced(strategy, tf.distribute.ReduceOp.SUM, [[tf.constant(int(flag), tf.int32)]])
    return int(count) > 0
