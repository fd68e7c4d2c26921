"""What a tensor has of the rows of a batch, and the marks of tensors of which that is known."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf


class Of(Enum):
    """What a tensor has of rows."""

    FREE = "nothing: it is equal on all workers"
    ROWS = "a value for each row"
    PICKED = "values of rows that were selected"
    SHAPE = "sizes of axes, of which one is the number of rows"
    SUM = "a sum over rows"
    MEAN = "a mean over rows"
    RATIO = "a sum or mean, divided by another"
    INVERSE = "one divided by a sum or mean"
    SEVERAL = "a linear combination of these"
    GUARDED = "a sum or mean, or a number if that is larger"
    WHOLE = "a function of the batch as a whole"
    OTHER = "unknown"


@dataclass(frozen=True, eq=False)
class Found:
    """What is known of a tensor.

    Attributes
    ----------
    of : Of
        What it has of rows.
    axis : int
        The axis of rows; for `Of.SHAPE` the entry that is their number.
    divisor : tf.Tensor or None
        By which a ratio is divided, and what rows are divided by.
    base : Of
        Of a ratio, what is divided: `Of.SUM` or `Of.MEAN`.
    is_count : bool
        Whether a sum is the number of rows, or a shape has that: a sum that it divides is a mean.
    why : str
        Of `Of.OTHER` and `Of.WHOLE`, the operation that made it so.
    """

    of: Of
    axis: int = 0
    divisor: Any = None
    base: Of = Of.SUM
    is_count: bool = False
    why: str = ""


FREE, SUM, MEAN, COUNT = Found(Of.FREE), Found(Of.SUM), Found(Of.MEAN), Found(Of.SUM, is_count=True)
OWN_STATE = "_tfos_own_state"  # attribute of the handle of a variable
TRAINED = "_tfos_trained"  # attribute of a tensor: whether it depends on variables, so that it has a gradient
MARK = "_tfos_found"  # attribute of a tensor of which this is known
REDUCED = {Of.SUM, Of.MEAN, Of.RATIO, Of.SEVERAL}


def mark(tensor: Any, found: Found) -> Any:
    """Mark a tensor with what is known of it, and return it."""
    setattr(tensor, MARK, found)
    return tensor


def mark_rows(tensor: Any) -> None:
    """Mark what a layer returns: values of rows, if the size of its first axis is not known before."""
    if tf.is_symbolic_tensor(tensor) and has_open_axis(tensor) and not hasattr(tensor, MARK):
        setattr(mark(tensor, Found(Of.ROWS)), TRAINED, True)


def mark_own_state(variable: Any) -> None:
    """Mark a variable of TensorFlow whose value each worker has for itself, as the state of a metric."""
    if not isinstance(variable, tf.distribute.DistributedValues) and hasattr(variable, "handle"):
        setattr(variable.handle, OWN_STATE, True)


def static_value(tensor: Any) -> Any:
    """Return the value of a tensor that depends on nothing, as an array of NumPy; None if it is not known."""
    value = tf.get_static_value(tensor)
    if value is not None or not tf.is_symbolic_tensor(tensor):
        return value
    kind = tensor.op.type
    if kind == "Rank":
        return tensor.op.inputs[0].shape.rank
    if kind not in _STATIC:
        return None
    inputs = [static_value(each) for each in tensor.op.inputs]
    return None if any(each is None for each in inputs) else np.asarray(_STATIC[kind](*inputs))


_STATIC: dict[str, Callable[..., Any]] = {  # of what libraries compute of ranks
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Pack": lambda *parts: np.stack(parts), "Identity": np.asarray,
}  # fmt: skip


def has_open_axis(tensor: Any) -> bool:
    """Return whether the size of a tensor's first axis is not known before."""
    return bool(tensor.shape.rank) and tensor.shape[0] is None


def entry(shape: Found) -> Found:
    """Return what the entry of a shape has that is the number of rows, or of those selected."""
    return COUNT if shape.is_count else SUM


def quotient(base: Found, divisor: Any) -> Found:
    """Return what a sum or mean has that is divided by another one."""
    if getattr(divisor, MARK).is_count and base.of is Of.SUM:
        return FREE if base.is_count else MEAN
    return Found(Of.RATIO, divisor=divisor, base=base.of)


def of_whole(tensor: Any) -> Found:
    """Return that a tensor is a function of all rows together, by its operation."""
    return Found(Of.WHOLE, why=tensor.op.type)


def not_known(tensor: Any) -> Found:
    """Return that nothing is known of a tensor, by its operation."""
    return Found(Of.OTHER, why=tensor.op.type)
