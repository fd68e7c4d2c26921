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
    TOTAL = "computed of sums and means over rows"
    WHOLE = "a function of the batch as a whole"
    OTHER = "unknown"


@dataclass(frozen=True, eq=False)
class Found:
    """What is known of a tensor."""

    of: Of
    axis: int = 0  # of the rows; for `Of.SHAPE` the entry that is their number
    # whether values of rows are computed with sums over rows too: those of this worker alone are others
    uses_totals: bool = False
    is_count: bool = False  # whether a sum is the number of rows, or a shape has that: a sum that it divides is a mean
    why: str = ""  # of `Of.OTHER` and `Of.WHOLE`, the operation that made it so


FREE, SUM, MEAN, COUNT = Found(Of.FREE), Found(Of.SUM), Found(Of.MEAN), Found(Of.SUM, is_count=True)
OWN_STATE = "_tfos_own_state"  # attribute of the handle of a variable
MARK = "_tfos_found"  # attribute of a tensor of which this is known
TOTALS = {Of.SUM, Of.MEAN, Of.TOTAL}
BY_ROW = {Of.ROWS, Of.PICKED}


def mark(tensor: Any, found: Found) -> Any:
    """Mark a tensor with what is known of it, and return it."""
    setattr(tensor, MARK, found)
    return tensor


def mark_rows(tensor: Any) -> Any:
    """Mark what is not known otherwise, as of what a layer returns: values of rows, if its first axis is open."""
    if (
        tf.is_symbolic_tensor(tensor)
        and has_open_axis(tensor)
        and getattr(tensor, MARK, not_known(tensor)).of is Of.OTHER
    ):
        mark(tensor, Found(Of.ROWS))
    return tensor


def mark_own_state(variable: Any) -> None:
    """Mark a variable of TensorFlow whose value each worker has for itself, as the state of a metric."""
    if not isinstance(variable, tf.distribute.DistributedValues) and hasattr(variable, "handle"):
        setattr(variable.handle, OWN_STATE, True)


def is_own_state(variable: Any) -> bool:
    """Return whether a variable is marked so."""
    is_mirrored = isinstance(variable, tf.distribute.DistributedValues)
    return not is_mirrored and hasattr(getattr(variable, "handle", None), OWN_STATE)


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


def of_whole(tensor: Any) -> Found:
    """Return that a tensor is a function of all rows together, by its operation."""
    return Found(Of.WHOLE, why=tensor.op.type)


def not_known(tensor: Any) -> Found:
    """Return that nothing is known of a tensor, by its operation."""
    return Found(Of.OTHER, why=tensor.op.type)
