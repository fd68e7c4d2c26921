"""Metrics of all workers' rows: what steps return, and what ``fit`` and ``evaluate`` show.

The state of a metric is a sum over rows, of which each worker has its own part. Results are computed from the sums of
the states of all workers, which one message carries.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import tensorflow as tf

from tensorflowonspark.keras.gradients import contribution
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.metrics import have_rows, real_rows, update_on
from tensorflowonspark.keras.row_kinds import mark_own_state
from tensorflowonspark.keras.saving import outside_scope
from tensorflowonspark.keras.tensorflow_collectives import all_sum
from tensorflowonspark.keras.worker_step import WorkerStep, current_step, is_building
from tensorflowonspark.keras.workers import has_several_workers

_NARROW = {tf.float16, tf.bfloat16, tf.float32}
_STRATEGY = "_tfos_strategy"  # attribute of a metric that was made in the scope of a strategy of several workers
_OF_METRIC = "_tfos_of_metric"  # attribute of a variable
_computing = ContextVar("the result of a metric is computed", default=False)


def sum_metrics(keras: ModuleType) -> None:
    """Have metrics keep the state of a worker, and show that of all workers (called after the import of Keras)."""
    wrapped_classes: set[type] = set()

    def init(wrapped: Any, metric: Any, /, *args: Any, **kwargs: Any) -> None:
        strategy = tf.distribute.get_strategy()
        wrapped(*args, **kwargs)
        if has_several_workers(strategy):
            object.__setattr__(metric, _STRATEGY, strategy)
        for kind in type(metric).__mro__:
            if "result" in vars(kind) and issubclass(kind, keras.Metric) and kind not in wrapped_classes:
                wrapped_classes.add(kind)
                wrap(cast(Any, kind), "result", _result)

    wrap(keras, "Metric.__init__", init)
    wrap(keras, "Metric.add_variable", _add_variable)
    wrap(keras, "Variable._deferred_initialize", _initialize)
    wrap(keras, "Model.get_metrics_result", _get_metrics_result)


def skip_padding(compile_utils: ModuleType) -> None:
    """Have Keras 3 update metrics with real rows (called after the import of its ``compile_utils``)."""

    def update_state(wrapped: Any, container: Any, /, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        real = None if current_step() else real_rows(sample_weight)  # of several workers, padding is out of the batch
        if real is None or not have_rows(y_true, y_pred, sample_weight):
            wrapped(y_true, y_pred, sample_weight)
            return
        if not container.built:
            container.build(y_true, y_pred)
        # Keras builds a model in a stateless scope, which records the assigned values.
        update_on(real, wrapped, y_true, y_pred, sample_weight, at_once=is_building())

    wrap(compile_utils, "CompileMetrics.update_state", update_state)


@contextmanager
def _of_worker() -> Iterator[None]:
    """Make variables that each worker has for itself, for the duration of a block.

    In the strategy's scope, TensorFlow would add up the parts of all workers whenever one of them reads a variable.
    """
    if not has_several_workers(tf.distribute.get_strategy()):
        yield
        return
    with tf.init_scope(), outside_scope():
        yield


def _add_variable(wrapped: Any, _metric: Any, /, *args: Any, **kwargs: Any) -> Any:
    with _of_worker():
        variable = wrapped(*args, **kwargs)
    object.__setattr__(variable, _OF_METRIC, True)
    mark_own_state(variable.value)
    return variable


def _initialize(wrapped: Any, variable: Any, /) -> None:
    """Make a variable whose metric was built while a model was traced."""
    with _of_worker() if hasattr(variable, _OF_METRIC) else nullcontext():
        wrapped()
    if hasattr(variable, _OF_METRIC):
        mark_own_state(variable.value)


def _result(wrapped: Any, metric: Any, /) -> Any:
    """Return the result of all workers where a loop of the program's own asks for it, outside of its replicas."""
    strategy = getattr(metric, _STRATEGY, None)
    replica = tf.distribute.get_replica_context()
    in_replica = replica is not None and replica.strategy is strategy
    if strategy is None or in_replica or _computing.get() or current_step() is not None or not _is_summed(metric):
        return wrapped()
    (state,) = sums(strategy, [_state(metric, strategy.num_replicas_in_sync)])
    found = _results(metric, state)
    return found[metric.name] if list(found) == [metric.name] else found


def _get_metrics_result(wrapped: Any, model: Any, /) -> dict[str, Any]:
    strategy = model.distribute_strategy
    if current_step() is not None or is_building() or not has_several_workers(strategy):
        return wrapped()  # type: ignore[no-any-return]
    with setting(_computing, True):
        own = wrapped()
        of_all = of_all_workers(strategy, [each for each in model.metrics if _is_summed(each)])
    return {name: of_all.get(name, value) for name, value in own.items()}


def of_all_workers(strategy: Any, metrics: Sequence[Any]) -> dict[str, Any]:
    """Return the results of metrics by name, computed from the states of all workers."""
    states = sums(strategy, [_state(each, strategy.num_replicas_in_sync) for each in metrics])
    found: dict[str, Any] = {}
    for metric, state in zip(metrics, states, strict=True):
        found.update(_results(metric, state))
    return found


@dataclass(frozen=True)
class StepLogs:
    """What the step of one worker has returned."""

    logs: Any  # scalars by name, of which one may be a dictionary as well
    parts: dict[tuple[str, ...], Any]  # what this worker adds to the value of all rows, for each float
    equal: dict[tuple[str, ...], Any]  # 1 for each float that is the result of the metric of its name, else 0
    metrics: list[Any]  # those of these names

    @staticmethod
    def of_worker(step: WorkerStep, logs: Any) -> "StepLogs":
        """Note what a step has returned, with the present results of its metrics.

        A value under the name of a metric that is not its result is one of the step's own: a loss, or a mean.
        """
        kept = {path: tf.convert_to_tensor(value) for path, value in _floats(logs)} if isinstance(logs, dict) else {}
        results = [(metric, _results(metric)) for metric in step.model.metrics if kept and _is_summed(metric)]
        own = {name: value for _, values in results for name, value in values.items()}
        equal = {path: tf.cast(tf.reduce_all(_same(value, own[path[-1]])), tf.float32)
                 for path, value in kept.items() if path[-1] in own}  # fmt: skip
        of_step = f"{type(step.model).__name__}: {{!r}} in what its step returns"
        parts = {path: contribution(step, value, of_step.format(path[-1])) for path, value in kept.items()}
        names = {path[-1] for path in kept}
        return StepLogs(logs, parts, equal, [metric for metric, values in results if values.keys() & names])

    def of_all_workers(self, step: WorkerStep) -> Any:
        """Return the logs with the values of all workers' rows, by the present states of metrics."""
        if not self.parts:
            return self.logs
        states = [_state(each, step.workers) for each in self.metrics]
        found, equal, states = sums(step.strategy, (self.parts, self.equal, states))
        for metric, state in zip(self.metrics, states, strict=True):
            for name, value in _results(metric, state).items():
                for path in [path for path in equal if path[-1] == name]:
                    of_all = tf.cast(tf.convert_to_tensor(value), found[path].dtype)
                    found[path] = tf.where(equal[path] == step.workers, of_all, found[path])
        return _replaced(self.logs, found)


def _floats(logs: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the floats among logs, of which one may be a dictionary as well, with the names that lead to them."""
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from _floats(value, (*path, name))
        elif isinstance(value, float) or (hasattr(value, "dtype") and tf.as_dtype(value.dtype).is_floating):
            yield (*path, name), value


def _replaced(logs: dict[str, Any], found: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return logs with other values where there are any."""
    return {
        name: _replaced(value, found, (*path, name)) if isinstance(value, dict) else found.get((*path, name), value)
        for name, value in logs.items()
    }


def _is_summed(metric: Any) -> bool:
    """Return whether the state of all workers is the sum or the mean of their states."""
    return bool(metric.variables) and all(each.aggregation in ("sum", "mean") for each in metric.variables)


def _state(metric: Any, workers: int) -> list[tf.Tensor]:
    """Return what this worker adds to the state of all."""
    own = [tf.convert_to_tensor(variable.value) for variable in metric.variables]
    means = [variable.aggregation == "mean" for variable in metric.variables]
    return [value / workers if is_mean else value for value, is_mean in zip(own, means, strict=True)]


def _results(metric: Any, state: Any = None) -> dict[str, Any]:
    """Return the results of a metric by name, of its present state or of another one."""
    from keras import StatelessScope  # its import is complete by now

    mapping = [] if state is None else list(zip(metric.variables, state, strict=True))
    with StatelessScope(mapping) if mapping else nullcontext(), setting(_computing, True):
        result = metric.result()
        result = result if isinstance(result, dict) else {metric.name: result}
        # A result may be a variable itself, whose value is another one after the block.
        return {name: tf.convert_to_tensor(value) for name, value in result.items()}


def _same(one: Any, other: Any) -> Any:
    other = tf.cast(tf.convert_to_tensor(other), one.dtype)
    return (one == other) | (tf.math.is_nan(one) & tf.math.is_nan(other))


def sums(strategy: Any, values: Any) -> Any:
    """Return the sums of a structure of tensors over all workers, from one message."""
    flat = tf.nest.flatten(values)
    if not flat:
        return values
    wide = tf.float32 if {each.dtype for each in flat} <= _NARROW else tf.float64
    joined = tf.concat([tf.reshape(tf.cast(each, wide), [-1]) for each in flat], axis=0)
    (total,) = all_sum(strategy, [joined])
    pieces = tf.split(total, [tf.size(each) for each in flat])
    shaped = [tf.cast(tf.reshape(piece, tf.shape(each)), each.dtype) for piece, each in zip(pieces, flat, strict=True)]
    for piece, each in zip(shaped, flat, strict=True):
        piece.set_shape(each.shape)
    return tf.nest.pack_sequence_as(values, shaped)
