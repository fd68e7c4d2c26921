"""Logs of a step: metrics of the rows of all replicas.

Keras shows callbacks the mean of the replicas' results after each step, and keeps that of an epoch's last step if a
model adds values of its own to the logs. Each replica's result is of its own rows: the mean is the result of all rows
only if all replicas have as many.

Here each replica computes the results from the sum of all replicas' states, which it gets in one message.
"""

from typing import Any

import tensorflow as tf

_NARROW = {tf.float16, tf.bfloat16, tf.float32}


class StepLogs(dict[str, Any]):
    """Logs of which all replicas have the same."""


def of_all_replicas(model: Any, logs: Any) -> Any:
    """Return a replica's logs with the results of all replicas in place of its own.

    Parameters
    ----------
    model : keras.Model
        The model, after its step.
    logs : dict of str to scalar or tensor
        What its step has returned. A value under the name of a metric that is not its result is averaged.
    """
    if not isinstance(logs, dict) or not all(map(_is_real, logs.values())):
        return logs
    kept = {name: tf.convert_to_tensor(value) for name, value in logs.items()}
    own = [(each, _results(each)) for each in model.metrics if _is_summed(each)]
    metrics = [each for each, results in own if results.keys() & kept.keys()]
    equal = {
        name: tf.cast(tf.reduce_all(_same(kept[name], value)), tf.float32)
        for _, results in own
        for name, value in results.items()
        if name in kept
    }
    states = [[tf.convert_to_tensor(variable) for variable in each.variables] for each in metrics]
    values, equal, states = _sums((kept, equal, states))
    count = tf.distribute.get_strategy().num_replicas_in_sync
    found = StepLogs((name, value / count) for name, value in values.items())
    for metric, state in zip(metrics, states, strict=True):
        for name, value in _results(metric, state).items():
            if name in kept:
                of_all = tf.cast(tf.convert_to_tensor(value), found[name].dtype)
                found[name] = tf.where(equal[name] == count, of_all, found[name])
    return found


def _is_real(value: Any) -> bool:
    return isinstance(value, float) or (hasattr(value, "dtype") and tf.as_dtype(value.dtype).is_floating)


def _is_summed(metric: Any) -> bool:
    """Return whether the state of all replicas is the sum of their states."""
    return bool(metric.variables) and all(each.aggregation == "sum" for each in metric.variables)


def _results(metric: Any, state: Any = None) -> dict[str, Any]:
    result = metric.result() if state is None else metric.stateless_result(state)
    return result if isinstance(result, dict) else {metric.name: result}


def _same(one: Any, other: Any) -> Any:
    other = tf.cast(tf.convert_to_tensor(other), one.dtype)
    return (one == other) | (tf.math.is_nan(one) & tf.math.is_nan(other))


def _sums(values: Any) -> Any:
    """Return the sums of a structure of tensors over all replicas, from one message."""
    flat = tf.nest.flatten(values)
    wide = tf.float32 if {each.dtype for each in flat} <= _NARROW else tf.float64
    joined = tf.concat([tf.reshape(tf.cast(each, wide), [-1]) for each in flat], axis=0)
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, joined)
    pieces = tf.split(total, [tf.size(each) for each in flat])
    shaped = [tf.cast(tf.reshape(piece, tf.shape(each)), each.dtype) for piece, each in zip(pieces, flat, strict=True)]
    for piece, each in zip(shaped, flat, strict=True):
        piece.set_shape(each.shape)
    return tf.nest.pack_sequence_as(values, shaped)
