"""Metrics as numbers: those that a program reports, and those of Keras's logs."""

from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError


def check_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers.

    They may be numbers, NumPy scalars or tensors without dimensions; anything else is a `SpecError`.

    Examples
    --------
    >>> check_metrics({"loss": np.float32(0.5), "rows": 3})
    {'loss': 0.5, 'rows': 3.0}
    """
    if not values:
        raise SpecError("ctx.report() has no metric: pass some by name, as in ctx.report(loss=0.5)")
    return {name: _checked(name, value) for name, value in values.items()}


def _checked(name: str, value: Any) -> float:
    number = None if isinstance(value, (str, bytes)) else _number(value)
    if number is not None:
        return number
    shape = getattr(value, "shape", None)
    if type(value).__name__ in ("SymbolicTensor", "KerasTensor") or not _is_eager(value):
        what = "a tensor of a graph, which has no value yet: call ctx.report outside of tf.function, with its result"
    elif shape is not None and len(shape):
        what = f"of shape {tuple(shape)}: report a number of it, as its mean"
    else:
        what = f"a {type(value).__name__}: expected a number, or a tensor without dimensions"
    raise SpecError(f"ctx.report: the metric {name!r} is {what}")


def _is_eager(value: Any) -> bool:
    return not hasattr(value, "graph") or hasattr(value, "numpy")


def numbers_in(logs: object) -> dict[str, float]:
    """Return those of Keras's logs that are numbers.

    Under parameter servers the logs of a step of ``tf_keras`` are a value that another node has, and not yet a mapping.

    Examples
    --------
    >>> numbers_in({"loss": np.float32(0.5), "name": "a"}), numbers_in(object())
    ({'loss': 0.5}, {})
    """
    found = {str(name): _number(value) for name, value in logs.items()} if isinstance(logs, Mapping) else {}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    """Return a number, an array or a tensor without dimensions as a float; None if it is something else."""
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "detach"):  # of torch
        value = value.detach().cpu()
    with suppress(Exception):  # whatever an object of the program's raises
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.kind in "biufV":  # V: floats that numpy does not have, as bfloat16
            return float(array.astype(np.float64))
    return None
