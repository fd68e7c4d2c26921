"""Keras 3's optimizers on several replicas: gradients are summed before anything else uses them.

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
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.global_batch import current_step
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.own_losses import weighted

# Replicas run their steps in separate threads, with a value each.
_summed: ContextVar[bool] = ContextVar("gradients are the sum over all replicas", default=False)
_only_building: ContextVar[bool] = ContextVar("optimizers only make their variables", default=False)


def sum_gradients_first(keras: ModuleType) -> None:
    """Have all optimizers sum gradients first (called after the import of Keras)."""

    def apply_gradients(wrapped: Any, optimizer: Any, /, grads: Any, trainable_variables: Any) -> None:
        if _only_building.get():
            return
        if not _on_replica():
            wrapped(grads, trainable_variables)
            return
        total = _sum(grads)
        with setting(_summed, True):
            _apply(optimizer, total, trainable_variables)

    def sum_once(wrapped: Any, _optimizer: Any, /, grads_and_vars: Any) -> Any:
        return grads_and_vars if _summed.get() else wrapped(grads_and_vars)

    wrap(keras, "Optimizer._backend_apply_gradients", apply_gradients)
    wrap(keras, "Optimizer._all_reduce_sum_gradients", sum_once)


def agree_on_loss_scale(keras: ModuleType) -> None:
    """Have all replicas agree whether gradients are finite (called after the import of Keras)."""

    def apply(wrapped: Any, optimizer: Any, /, grads: Any, trainable_variables: Any = None) -> Any:
        if _only_building.get():
            return optimizer.built or optimizer.build(trainable_variables)
        return wrapped(_sum(grads) if _on_replica() else grads, trainable_variables)

    def update(wrapped: Any, _optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
        if not _on_replica():
            wrapped(*args, **kwargs)
            return
        with setting(_summed, True):
            wrapped(*args, **kwargs)

    wrap(keras, "optimizers.LossScaleOptimizer.apply", apply)
    wrap(keras, "optimizers.LossScaleOptimizer._stateful_handle_finite_grads", update)


def only_building() -> AbstractContextManager[None]:
    """Have optimizers make the variables for their gradients without an update, for the duration of a block."""
    return setting(_only_building, True)


def _on_replica() -> bool:
    """Return whether a replica of a strategy that mirrors variables runs this step."""
    replica = tf.distribute.get_replica_context()
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return replica is not None and isinstance(replica.strategy, mirrored)


def _sum(grads: Sequence[Any]) -> list[Any]:
    """Return the sum of each gradient over all replicas, unless they are summed already."""
    if _summed.get() or all(each is None for each in grads):
        return list(grads)
    known = [each for each in weighted(grads) if each is not None]
    step, add = current_step(), partial(tf.distribute.get_replica_context().all_reduce, tf.distribute.ReduceOp.SUM)
    if step is None or not step.late:
        sums = add(known)
    else:  # in one message with the rows by which they are weighted
        rows = tf.cast(step.own, known[0].dtype)
        *sums, total = add([*(tf.math.scalar_mul(rows, each) for each in known), rows])
        sums = [tf.math.scalar_mul(tf.math.divide_no_nan(tf.ones_like(total), total), each) for each in sums]
    found = iter(sums)
    return [None if each is None else next(found) for each in grads]


def _apply(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Apply gradients as ``BaseOptimizer._backend_apply_gradients`` does, with branches for all replicas at once."""

    def update(gradients: Sequence[Any]) -> None:
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)

    steps = optimizer.gradient_accumulation_steps
    if steps:
        accumulators = [optimizer._accumulated_gradients[optimizer._get_variable_index(each)] for each in variables]
        mean = [(grad + accumulated) / steps for grad, accumulated in zip(grads, accumulators, strict=True)]
        clipped = optimizer._clip_gradients(mean)

        def update_and_reset() -> None:
            update(clipped)
            for each in accumulators:
                each.assign(tf.zeros(each.shape, each.dtype))

        def accumulate() -> None:
            for each, grad in zip(accumulators, grads, strict=True):
                each.assign(each + grad)

        _branch(
            (optimizer._iterations + 1) % steps == 0,
            update_and_reset,
            accumulate,
        )
    else:
        update(optimizer._clip_gradients(grads))
    if not optimizer.use_ema:
        return
    optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
    if optimizer.ema_overwrite_frequency:
        _branch(
            (optimizer.iterations + 1) % optimizer.ema_overwrite_frequency == 0,
            lambda: optimizer._overwrite_model_variables_with_average_value(optimizer._trainable_variables),
            lambda: None,
        )


def _branch(condition: Any, on_true: Callable[[], None], on_false: Callable[[], None]) -> None:
    """Call one of two functions on all replicas, by a condition that is the same on all of them."""

    def for_all_replicas(strategy: tf.distribute.Strategy, condition: Any, on_true: Any, on_false: Any) -> None:
        def call_each(functions: Any) -> Callable[[], None]:
            def call() -> None:
                strategy.extended.call_for_each_replica(_call_with_sums, args=(functions,))

            return call

        one = strategy.experimental_local_results(condition)[0]
        tf.cond(one, call_each(on_true), call_each(on_false))

    replica = tf.distribute.get_replica_context()
    replica.merge_call(for_all_replicas, args=(tf.convert_to_tensor(condition), on_true, on_false))


def _call_with_sums(function: Callable[[], None]) -> None:
    with setting(_summed, True):
        function()
