"""What a loss does with the rows of a batch, read from the graph that computes it.

A loss that a program computes by itself is a mean over the rows, or a sum. The gradients of several workers are
averaged or added up accordingly; nothing but the operations shows which.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

KERAS = "a loss of Keras"  # whose reduction is known
MEAN = "a mean over rows"
SUM = "a sum over rows"
COUNT = "a number of rows"
FREE = "without rows"  # beside terms of rows, as a regularizer
UNKNOWN = "unknown"
_PER_COUNT = "one divided by a number of rows"
_OF_ROWS = {SUM, COUNT, _PER_COUNT, MEAN, KERAS}  # of which another function is one of the batch as a whole

_MARK = "_tfos_terms"  # attribute of a tensor whose terms are known
_SUMS = ("Sum", "L2Loss")
_MEANS = ("Mean", "All", "Any", "ArgMax", "ArgMin")  # the latter choose, and have no gradients
_LINEAR = (
    "Identity", "IdentityN", "Cast", "Neg", "Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2", "Sum", "Mean", "Reshape",
    "Squeeze", "ExpandDims", "StridedSlice", "Select", "SelectV2", "StopGradient", "PreventGradient", "Prod", "Mul",
    "EnsureShape", "CheckNumerics", "PlaceholderWithDefault", "Snapshot", "BroadcastTo", "Transpose", "Unpack",
)  # fmt: skip
_ADDING = ("Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2")
_RATIOS = ("RealDiv", "Div", "DivNoNan")
_FUNCTIONS = ("If", "While", "Case", "Call", "Collective", "PyFunc")  # in the names of operations


def mark(tensor: Any, *known: str) -> Any:
    """Mark a tensor with its terms, and return it."""
    setattr(tensor, _MARK, frozenset(known))
    return tensor


def may_be_loss(value: Any) -> bool:
    """Return whether a value is a tensor of one float; a variable, as a metric may return it, is none."""
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def is_of_keras(value: Any) -> bool:
    """Return whether a value is the loss itself that Keras has reduced."""
    return KERAS in getattr(value, _MARK, ())


def _known(tensor: Any) -> frozenset[str] | None:
    return getattr(tensor, _MARK, None)


def terms(loss: Any) -> frozenset[str]:
    """Return what the terms of a loss are; an empty set if it depends on no row, as a regularizer."""
    if not tf.is_tensor(loss):
        return frozenset()
    if (known := _known(loss)) is not None:
        return known
    if not tf.is_symbolic_tensor(loss):
        return frozenset([UNKNOWN])
    if _has_rows(loss):  # the gradient of such a loss is that of its sum
        return frozenset([SUM])
    found: dict[str, frozenset[str]] = {}
    pending = [loss]
    while pending:  # not recursive: a graph may be deep
        tensor = pending[-1]
        if tensor.name in found:
            pending.pop()
            continue
        missing = [each for each in _static_inputs(tensor) if each.name not in found]
        if missing:
            pending += missing
            continue
        found[pending.pop().name] = _combined(tensor, found)
    return found[loss.name]


def _has_rows(tensor: Any) -> bool:
    return not tensor.shape.is_fully_defined() and tensor.dtype not in (tf.resource, tf.variant)


def _static_inputs(tensor: Any) -> Iterator[Any]:
    if _known(tensor) is not None:
        return iter(())
    return (each for each in tensor.op.inputs if not _has_rows(each))


def _combined(tensor: Any, found: dict[str, frozenset[str]]) -> frozenset[str]:  # noqa: PLR0911 - one for each kind
    if (known := _known(tensor)) is not None:
        return known
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    if kind in ("Shape", "Size"):
        return frozenset([COUNT]) if _has_rows(inputs[0]) else frozenset()
    if any(_has_rows(each) for each in inputs):
        return frozenset([SUM if kind in _SUMS else MEAN if kind in _MEANS else UNKNOWN])
    of_inputs = [found[each.name] for each in inputs]
    if kind == "StridedSlice" and inputs[0].op.type == "Shape" and tf.get_static_value(inputs[1]) != 0:
        return frozenset()  # the length of another axis
    if kind in _RATIOS:
        return _ratio(*of_inputs)
    if kind == "Mul":
        return _product(*of_inputs)
    union = frozenset().union(*of_inputs)
    if kind in _ADDING and union and any(not found[each.name] and each.op.type != "Const" for each in inputs):
        union |= {FREE}
    if any(name in kind for name in _FUNCTIONS):
        return frozenset([UNKNOWN]) if union else union
    return union if kind in _LINEAR or not union & _OF_ROWS else frozenset([UNKNOWN])


def _ratio(dividend: frozenset[str], divisor: frozenset[str]) -> frozenset[str]:
    if divisor == {COUNT}:
        return _product(dividend, frozenset([_PER_COUNT]))
    if divisor & _OF_ROWS:  # divided by what this worker has
        return frozenset([UNKNOWN])
    return dividend | divisor


def _product(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    if _PER_COUNT in one:
        one, other = other, one
    if other == {_PER_COUNT}:
        by_count = {SUM: MEAN, COUNT: ""}
        if not one:
            return other
        return frozenset(filter(None, (by_count.get(each, UNKNOWN) for each in one)))
    both = one | other
    return both if not one or not other or not both & _OF_ROWS else frozenset([UNKNOWN])
