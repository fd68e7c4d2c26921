"""The time for which a worker waits for the others: in TensorFlow's collectives, and in rounds of workers apart.

A collective begins when its inputs are computed, and ends when every worker has contributed: what passes in between is
the time that the slowest worker needs longer, and the time of sending. TensorFlow's own graph notes both moments and
adds up the difference, so that nothing in Python runs with each step. A collective that follows another in the program
also waits for that one: of such overlaps each second counts once.

On a GPU a graph runs ahead of the device, and its moments mean nothing: there the time is unknown.

This module imports no TensorFlow before a collective is built.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from types import ModuleType
from typing import Any

from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.workers import has_several_workers


class Stopwatch:
    """Adds up the time of intervals, of which one at a time is open.

    Examples
    --------
    >>> watch = Stopwatch()
    >>> watch.start(10.0)
    >>> watch.read(12.5)
    2.5
    >>> watch.stop(13.0)
    >>> watch.read(20.0)
    3.0
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._since: float | None = None
        self._has_run = False

    @property
    def has_run(self) -> bool:
        """Whether any interval has been opened."""
        return self._has_run

    @property
    def runs(self) -> bool:
        """Whether an interval is open."""
        return self._since is not None

    def start(self, now: float) -> None:
        """Open an interval, unless one is open."""
        self._has_run = True
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        """Close the open interval, if there is one."""
        since, self._since = self._since, None
        if since is not None:
            self._total += max(0.0, now - since)

    def read(self, now: float) -> float:
        """Return the seconds so far, with those of the open interval."""
        since = self._since
        return self._total + (max(0.0, now - since) if since is not None else 0.0)


_rounds = Stopwatch()  # of the rounds in which this process waits for other workers


@contextmanager
def waiting_in_round() -> Iterator[None]:
    """Count the time of a block as waiting for other workers."""
    _rounds.start(time.monotonic())
    try:
        yield
    finally:
        _rounds.stop(time.monotonic())


def waiting_seconds() -> float | None:
    """Return the seconds for which this process has waited for other workers; None if that is not measured."""
    in_collectives = _collectives.read()
    if in_collectives is None and not _rounds.has_run:
        return None
    return (in_collectives or 0.0) + _rounds.read(time.monotonic())


class _Collectives:
    """The time in collectives, in a variable of TensorFlow: its total, the last end, and the open beginning or 0."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._state: Any = None  # the variable's handle
        self._nested = False  # building one, which may consist of others

    def measured(self, inputs: Any, build: Callable[[], Any]) -> Any:
        """Return what `build` returns, which contributes `inputs` to a collective, and measure it."""
        import tensorflow as tf

        if self._nested or tf.config.list_logical_devices("GPU"):
            return build()
        state = self._variable(tf)
        self._nested = True
        try:
            with tf.device("CPU:0"):
                with tf.control_dependencies(_tensors(tf, inputs)):
                    begin = tf.timestamp()
                _assign(tf, state, lambda total, end, _: (total, end, tf.maximum(begin, end)))
            outputs = build()
            with tf.device("CPU:0"):
                with tf.control_dependencies(_tensors(tf, outputs)):
                    end = tf.timestamp()
                _assign(tf, state, lambda total, _, begin: (total + tf.maximum(end - begin, 0.0), end, 0.0))
        finally:
            self._nested = False
        return outputs

    def _variable(self, tf: Any) -> Any:
        with self._lock:
            if self._state is None:
                with tf.init_scope(), tf.device("CPU:0"):
                    state = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[3], shared_name="tensorflowonspark_waits")
                    tf.raw_ops.AssignVariableOp(resource=state, value=tf.zeros(3, tf.float64))
                self._state = state
            return self._state

    def read(self) -> float | None:
        """Return the seconds in collectives so far; None if none was measured."""
        if self._state is None:
            return None
        import tensorflow as tf

        with suppress(Exception), tf.init_scope(), tf.device("CPU:0"):
            total, _, begin = tf.raw_ops.ReadVariableOp(resource=self._state, dtype=tf.float64).numpy()
            return float(total) + (max(0.0, time.time() - float(begin)) if begin else 0.0)
        return None


_collectives = _Collectives()


def measured(inputs: Any, build: Callable[[], Any]) -> Any:
    """Return what `build` returns, which makes a collective of `inputs`, whose time counts as waiting for others."""
    return _collectives.measured(inputs, build)


def _tensors(tf: Any, values: Any) -> list[Any]:
    """Return the tensors of a structure, in which those of several replicas may be one value."""
    flat = tf.nest.flatten(values, expand_composites=True)
    return [each for each in flat if isinstance(each, tf.Tensor) and each.dtype != tf.resource]


def _assign(tf: Any, state: Any, update: Callable[[Any, Any, Any], Any]) -> None:
    values = update(*tf.unstack(tf.raw_ops.ReadVariableOp(resource=state, dtype=tf.float64), num=3))
    tf.raw_ops.AssignVariableOp(resource=state, value=tf.stack([tf.cast(each, tf.float64) for each in values]))


def measure_collectives(tensorflow: ModuleType) -> None:
    """Measure the collectives of strategies with several workers (called after the import of TensorFlow)."""

    def reduce(call: Any, extended: Any, reduce_op: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        build = partial(call, reduce_op, value, *args, **kwargs)
        strategy = getattr(extended, "_tfos_strategy", lambda: None)()  # of a MultiWorkerMirroredStrategy
        if not has_several_workers(strategy):
            return build()
        inputs = [each for each, _destination in value] if isinstance(value, list) else value  # a list is a batch
        return measured(inputs, build)

    for name in ("reduce_to", "batch_reduce_to"):
        wrap(tensorflow, f"distribute.StrategyExtended.{name}", reduce)
