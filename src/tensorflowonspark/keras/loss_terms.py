"""The terms of a loss, and by what each follows from the workers' own.

A loss that a program computes by itself may be a mean over rows, a sum, a quotient of two sums, or a function of the
batch as a whole. The loss of all workers' rows follows from the workers' own in the first three cases, in each in
another way. A loss that adds up several is taken apart.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.row_kinds import Found, Of
from tensorflowonspark.keras.row_operations import RATIOS, SAME, found_in


def total(tensor: Any, reduced: Any) -> Any:
    """Return a divisor as one process has it, which has all rows.

    Parameters
    ----------
    tensor : tf.Tensor
        The divisor of this worker, of which `is_total` holds.
    reduced : callable
        Returns for a sum or mean of this worker that of all workers.
    """
    if found_in(tensor).of in (Of.SUM, Of.MEAN):
        return reduced(tensor)
    inputs = [each if found_in(each).of is Of.FREE else total(each, reduced) for each in tensor.op.inputs]
    if tensor.op.type == "Cast":
        return tf.cast(inputs[0], tensor.dtype)
    functions = {"Identity": tf.identity, "Maximum": tf.maximum, "Mul": tf.multiply}
    return functions.get(tensor.op.type, tf.add)(*inputs)


@dataclass(frozen=True)
class Term:
    """A term of a value that is a linear combination.

    Attributes
    ----------
    tensor : tf.Tensor
        The term.
    factor : tf.Tensor
        By which it is multiplied, equal on all workers.
    found : Found
        What it has of rows: a sum, a mean, a ratio, or nothing.
    """

    tensor: Any
    factor: Any
    found: Found


def terms(value: Any, factor: Any) -> list[Term]:  # noqa: PLR0911 - one for each operation
    """Return the terms of a value: itself, if it is one.

    Parameters
    ----------
    value : tf.Tensor
        The value.
    factor : tf.Tensor
        By which it is multiplied.
    """
    found = found_in(value)
    if found.of is not Of.SEVERAL:
        return [Term(value, factor, found)]
    kind, inputs = value.op.type, list(value.op.inputs)
    if kind in SAME:
        return terms(inputs[value.value_index], tf.cast(factor, inputs[value.value_index].dtype))
    if kind in ("Add", "AddV2", "AddN", "Sub") and all(each.shape.rank == 0 for each in inputs):
        second = tf.negative(factor) if kind == "Sub" else factor
        return [*terms(inputs[0], factor), *(term for each in inputs[1:] for term in terms(each, second))]
    if kind == "Neg":
        return terms(inputs[0], tf.negative(factor))
    if kind == "Mul" and value.shape.rank == 0:
        first = found_in(inputs[0]).of is Of.FREE
        return terms(inputs[first], factor * inputs[not first])
    if kind in RATIOS and value.shape.rank == 0:
        return terms(inputs[0], factor / inputs[1])
    if kind in ("Sum", "Mean") and inputs[0].op.type == "Pack" and value.shape.rank == 0:
        parts = list(inputs[0].op.inputs)
        each_factor = factor / len(parts) if kind == "Mean" else factor
        if all(each.shape.rank == 0 for each in parts):
            return [term for each in parts for term in terms(each, each_factor)]
    return [Term(value, factor, Found(Of.OTHER, why=f"{kind} of several kinds of terms"))]
