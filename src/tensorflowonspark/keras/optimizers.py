"""Keras 3's optimizers in loops of a program's own, on several replicas: gradients are summed before any other use.

Keras sums the gradients of all replicas last, just before the update. Before that, each replica processes its own share
of the gradient: clips it, accumulates it over steps, tests whether it is finite. The weights differ from those of one
process with the whole batch, and if two replicas come to different results, a worker waits for ever. Operations in some
steps only (``gradient_accumulation_steps``, ``ema_overwrite_frequency``) fail, since a branch of one replica's graph
must not communicate with other replicas.

Here the sum comes first. Then each replica computes the same, and all take the same branch, which is entered for all
replicas of a worker at once.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.gradients import applied
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.worker_step import current_step, is_building

# Replicas run their steps in separate threads, with a value each: the graph in which gradients are the sum over all.
_summed: ContextVar[Any] = ContextVar("graph of sums", default=None)


def sum_gradients_first(keras: ModuleType) -> None:
    """Have all optimizers sum gradients first (called after the import of Keras)."""
    # The replicas whose LossScaleOptimizer has summed the gradients, and now applies the optimizer within it. It does
    # so in another thread of each replica, where no context variable tells that.
    summed: set[int | None] = set()

    def apply(call: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        replica, step = _replica(), current_step()
        if step is not None and not _summed.get():
            optimizer._distribution_strategy = step.strategy  # also of one that was made outside of its scope
            with _with_sums():
                call(applied(step, grads), trainable_variables)
        elif is_building():
            if len(grads) and not optimizer.built:
                with keras.name_scope(optimizer.name, caller=optimizer):
                    optimizer.build(trainable_variables)
        elif replica is None:
            call(grads, trainable_variables)
        else:
            total = list(grads) if _number(replica) in summed else _sum(grads)
            with _with_sums():
                call(total, trainable_variables)

    def apply_scaled(call: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        def call_inner(grads: Any, trainable_variables: Any) -> None:
            number = _number(_replica())
            summed.add(number)
            try:
                call(grads, trainable_variables)
            finally:
                summed.discard(number)

        apply(call_inner, optimizer, grads, trainable_variables)

    def sum_once(wrapped: Any, _optimizer: Any, /, grads_and_vars: Any) -> Any:
        return wrapped(grads_and_vars) if _summed.get() is None else grads_and_vars

    wrap(keras, "Optimizer.apply", apply)
    wrap(keras, "optimizers.LossScaleOptimizer.apply", apply_scaled)
    wrap(keras, "Optimizer._all_reduce_sum_gradients", sum_once)


def branch_on_all_replicas(tensorflow: ModuleType) -> None:
    """Have optimizers enter a branch for all replicas at once (called after the import of TensorFlow).

    Keras's ``cond`` calls the wrapped function.
    """

    def cond(wrapped: Any, _: Any, /, pred: Any, true_fn: Any = None, false_fn: Any = None, name: Any = None) -> Any:
        # Not in a graph within the step's, as that of a schedule which is a tf.function.
        is_of_step = _summed.get() is tf.compat.v1.get_default_graph() and _replica() is not None
        return _branch(pred, true_fn, false_fn) if is_of_step else wrapped(pred, true_fn, false_fn, name)

    wrap(tensorflow, "__internal__.smart_cond.smart_cond", cond)


def _with_sums() -> AbstractContextManager[None]:
    """Have the gradients of this graph taken as sums over all replicas, for the duration of a block."""
    return setting(_summed, tf.compat.v1.get_default_graph())


def _replica() -> Any:
    """Return the replica of a strategy that mirrors variables which runs this step; None if there is none."""
    replica = tf.distribute.get_replica_context()
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return replica if replica is not None and isinstance(replica.strategy, mirrored) else None


def _number(replica: Any) -> int | None:
    """Return a replica's number among all, which in a graph is a constant of it; None without a replica."""
    return None if replica is None else int(tf.get_static_value(replica.replica_id_in_sync_group))


def _sum(grads: Sequence[Any]) -> list[Any]:
    """Return the sum of each gradient over all replicas, unless they are summed already."""
    if _summed.get() is not None or all(each is None for each in grads):
        return list(grads)
    known = [each for each in grads if each is not None]
    sums = iter(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, known))
    return [None if each is None else next(sums) for each in grads]


def _branch(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Return what one of two functions returns, called on all replicas by a condition that is the same on all of them.

    Keras's ``cond`` would call it on each replica, where a branch must not communicate.
    """

    def for_all_replicas(strategy: tf.distribute.Strategy, pred: Any, true_fn: Any, false_fn: Any) -> Any:
        def call_each(functions: Any) -> Callable[[], Any]:
            return lambda: strategy.extended.call_for_each_replica(_call_with_sums, args=(functions,))

        return tf.cond(strategy.experimental_local_results(pred)[0], call_each(true_fn), call_each(false_fn))

    replica = tf.distribute.get_replica_context()
    return replica.merge_call(for_all_replicas, args=(tf.convert_to_tensor(pred), true_fn, false_fn))


def _call_with_sums(function: Callable[[], Any]) -> Any:
    """Return what a function returns, as tensors of this replica: TensorFlow would take one that all have for one."""
    with _with_sums():
        return tf.nest.map_structure(lambda each: None if each is None else tf.identity(each), function())
