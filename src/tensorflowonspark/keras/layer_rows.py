"""Layers: what they return of the rows of a batch, and what they keep of them, is that of all workers' rows.

A layer may compute what it returns with sums or means over rows, as a batch's deviation, and may keep such a value in a
variable, as a running mean. In a step (`worker_step`) these are computed once more of the sums of all workers
(`all_rows`). ``BatchNormalization`` is left alone: whether it normalizes with the rows of all workers is an argument of
its own (`batch_statistics`).
"""

from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.all_rows import of_all_rows
from tensorflowonspark.keras.gradients import refusal
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.row_kinds import TOTALS, Of, is_own_state, mark, mark_rows
from tensorflowonspark.keras.row_operations import found_in
from tensorflowonspark.keras.worker_step import WorkerStep, current_step

_normalizes = ContextVar("a BatchNormalization is called", default=False)


def know_rows(keras: ModuleType) -> None:
    """Have what layers return be of all workers' rows (called after the import of Keras)."""

    def call(wrapped: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is None:
            return wrapped(*args, **kwargs)
        if isinstance(layer, keras.layers.BatchNormalization):
            with setting(_normalizes, True):
                return keras.tree.map_structure(mark_rows, wrapped(*args, **kwargs))
        return keras.tree.map_structure(partial(_of_all, step, layer), wrapped(*args, **kwargs))

    wrap(keras, "Layer.__call__", call)


def _of_all(step: WorkerStep, layer: Any, output: Any) -> Any:
    if not tf.is_symbolic_tensor(output) or not isinstance(output, tf.Tensor):
        return output
    found = found_in(output)
    if found.of is Of.WHOLE:
        raise SpecError(refusal(f"what the layer {layer.name} returns", found))
    if found.uses_totals:
        (output,) = of_all_rows(step, [output])
        return mark(output, replace(found, uses_totals=False))
    return mark_rows(output) if found.of is Of.OTHER else output


def keep_of_all(keras: ModuleType) -> None:
    """Have variables that a step sets from sums over rows get those of all workers (called after Keras's import).

    The state of a metric stays that of the worker, and a step that XLA compiles sends no message.
    """

    def assign(wrapped: Any, variable: Any, /, value: Any) -> Any:
        step = current_step()
        is_of_worker = step is None or step.is_compiled or _normalizes.get() or is_own_state(variable.value)
        if step is not None and not is_of_worker and tf.is_symbolic_tensor(value) and found_in(value).of in TOTALS:
            (value,) = of_all_rows(step, [value])
        return wrapped(value)

    wrap(keras, "Variable.assign", assign)
