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
_overwrites: ContextVar[bool] = ContextVar("a branch of all replicas may overwrite weights", default=False)
_only_building: ContextVar[bool] = ContextVar("optimizers only make their variables", default=False)


def sum_gradients_first(keras: ModuleType) -> None:
    """Have all optimizers sum gradients first (called after the import of Keras)."""

    def apply(wrapped: Any, optimizer: Any, /, grads: Any, trainable_variables: Any = None) -> Any:
        if _only_building.get():
            return optimizer.built or optimizer.build(trainable_variables)
        if not _on_replica():
            return wrapped(grads, trainable_variables)
        total = _sum(grads, trainable_variables)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return wrapped(total, trainable_variables)  # it calls another optimizer
        with setting(_summed, True):
            return _apply(wrapped, optimizer, total, trainable_variables)

    def update(wrapped: Any, _optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
        """Update the weights with finite gradients: in a branch, where replicas have threads of their own."""
        with setting(_summed, _on_replica()):
            wrapped(*args, **kwargs)

    def sum_once(wrapped: Any, _optimizer: Any, /, grads_and_vars: Any) -> Any:
        return grads_and_vars if _summed.get() else wrapped(grads_and_vars)

    def overwrite(wrapped: Any, _optimizer: Any, /, trainable_variables: Any) -> None:
        if not _summed.get() or _overwrites.get():  # else a branch of one replica's graph, and `_apply` follows
            wrapped(trainable_variables)

    for each in ("Optimizer", "LossScaleOptimizer"):
        wrap(keras, f"optimizers.{each}.apply", apply)
    wrap(keras, "optimizers.LossScaleOptimizer._stateful_handle_finite_grads", update)
    wrap(keras, "Optimizer._all_reduce_sum_gradients", sum_once)
    wrap(keras, "Optimizer._overwrite_model_variables_with_average_value", overwrite)


def only_building() -> AbstractContextManager[None]:
    """Have optimizers make the variables for their gradients without an update, for the duration of a block."""
    return setting(_only_building, True)


def _on_replica() -> bool:
    """Return whether a replica of a strategy that mirrors variables runs this step."""
    replica = tf.distribute.get_replica_context()
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return replica is not None and isinstance(replica.strategy, mirrored)


def _sum(grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
    """Return the sum of each gradient over all replicas, unless they are summed already."""
    summed = [
        grad is not None and not getattr(variable, "overwrite_with_gradient", False)
        for grad, variable in zip(grads, variables or [None] * len(grads), strict=True)
    ]
    if _summed.get() or not any(summed):
        return list(grads)
    known = [grad for grad, is_summed in zip(weighted(grads), summed, strict=True) if is_summed]
    step, add = current_step(), partial(tf.distribute.get_replica_context().all_reduce, tf.distribute.ReduceOp.SUM)
    if step is None or not step.late:
        sums = add(known)
    else:  # in one message with the rows by which they are weighted
        rows = tf.cast(step.own, known[0].dtype)
        *sums, total = add([*(tf.math.scalar_mul(rows, each) for each in known), rows])
        sums = [tf.math.scalar_mul(tf.math.divide_no_nan(tf.ones_like(total), total), each) for each in sums]
    found = iter(sums)
    return [next(found) if is_summed else grad for grad, is_summed in zip(grads, summed, strict=True)]


def _apply(apply: Callable[..., Any], optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None) -> None:
    """Apply gradients by Keras's own function, with branches for all replicas at once."""
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        apply(grads, variables)
    else:
        if not optimizer.built:
            optimizer.build(variables)
        of_all = optimizer._trainable_variables
        given = zip(grads, of_all if variables is None else variables, strict=True)
        known = [(grad, variable) for grad, variable in given if grad is not None]
        accumulators = [optimizer._accumulated_gradients[optimizer._get_variable_index(each)] for _, each in known]
        sums = [grad + accumulated for (grad, _), accumulated in zip(known, accumulators, strict=True)]

        def update() -> None:
            apply([each / steps for each in sums], [variable for _, variable in known])
            for each in accumulators:
                each.assign(tf.zeros(each.shape, each.dtype))

        def accumulate() -> None:
            for each, value in zip(accumulators, sums, strict=True):
                each.assign(value)
            if optimizer.use_ema:
                optimizer._update_model_variables_moving_average(of_all)
            optimizer.iterations.assign_add(1)

        _branch(optimizer, (optimizer.iterations + 1) % steps == 0, update, accumulate)
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:

        def overwrite() -> None:
            with setting(_overwrites, True):
                optimizer._overwrite_model_variables_with_average_value(optimizer._trainable_variables)

        _branch(optimizer, optimizer.iterations % optimizer.ema_overwrite_frequency == 0, overwrite, lambda: None)


def _branch(optimizer: Any, condition: Any, on_true: Callable[[], None], on_false: Callable[[], None]) -> None:
    """Call one of two functions on all replicas, by a condition that is the same on all of them.

    In these functions the optimizer accumulates no gradients itself.
    """

    def for_all_replicas(strategy: tf.distribute.Strategy, condition: Any, on_true: Any, on_false: Any) -> None:
        def call_each(functions: Any) -> Callable[[], None]:
            def call() -> None:
                strategy.extended.call_for_each_replica(_call_with_sums, args=(functions,))

            return call

        one = strategy.experimental_local_results(condition)[0]
        steps, optimizer.gradient_accumulation_steps = optimizer.gradient_accumulation_steps, None
        try:
            tf.cond(one, call_each(on_true), call_each(on_false))
        finally:
            optimizer.gradient_accumulation_steps = steps

    replica = tf.distribute.get_replica_context()
    replica.merge_call(for_all_replicas, args=(tf.convert_to_tensor(condition), on_true, on_false))


def _call_with_sums(function: Callable[[], None]) -> None:
    with setting(_summed, True):
        function()
