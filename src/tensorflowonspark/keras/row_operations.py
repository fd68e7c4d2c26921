"""What a value has of the rows of a batch, by the operations that compute it.

Operations are followed from what is known to have rows: the batch, what layers return, and what programs make in the
batch's size. Each operation is known to keep rows apart, to add them up, or to be linear; after any other one nothing
is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras import row_axes
from tensorflowonspark.keras.row_kinds import (
    FREE,
    MARK,
    MEAN,
    OWN_STATE,
    REDUCED,
    SUM,
    TRAINED,
    Found,
    Of,
    entry,
    has_open_axis,
    mark,
    not_known,
    of_whole,
    quotient,
    static_value,
)

_BATCHED = 3  # axes of tensors whose matrices are multiplied, each with its own
SAME = {
    "Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Snapshot", "EnsureShape", "Cast", "IdentityN",
    "PlaceholderWithDefault",
}  # fmt: skip
_ELEMENTWISE = {
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "BiasAdd", "BitwiseAnd",
    "BitwiseOr", "Ceil", "ClipByValue", "Complex", "Conj", "Cos", "Cosh", "Digamma", "Div", "DivNoNan", "Elu", "Equal",
    "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Imag", "Inv",
    "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Less", "LessEqual", "Lgamma", "Log", "Log1p", "LogicalAnd",
    "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "Ndtri", "Neg", "NotEqual", "OnesLike",
    "Pow", "Real", "RealDiv", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Selu",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan",
    "Tanh", "TruncateDiv", "Xdivy", "Xlogy", "Xlog1py", "ZerosLike", "Bitcast", "BitwiseXor", "Invert", "LeftShift",
    "RightShift", "EluGrad", "InvGrad", "LeakyReluGrad", "ReciprocalGrad", "Relu6Grad", "ReluGrad", "RsqrtGrad",
    "SeluGrad", "SigmoidGrad", "SoftplusGrad", "SoftsignGrad", "SqrtGrad", "TanhGrad",
}  # fmt: skip
_BY_LAST_AXIS = {"Softmax", "LogSoftmax", "TopKV2", "FFT", "IFFT", "RFFT", "IRFFT", "InTopKV2"}
_BY_ROW = {
    "AvgPool", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "LRN", "MaxPool", "ResizeBilinear",
    "ResizeNearestNeighbor", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "SpaceToDepth",
    "DepthToSpace", "ExtractImagePatches", "RGBToHSV", "HSVToRGB", "AdjustContrastv2",
}  # fmt: skip
_CALLS = {"Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf", "While"}
_RANDOM = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGammaV3", "RandomPoissonV2", "RandomStandardNormal",
    "RandomUniform", "RandomUniformInt", "StatelessRandomBinomial", "StatelessRandomGammaV3", "StatelessRandomNormal",
    "StatelessRandomNormalV2", "StatelessRandomPoisson", "StatelessRandomUniform", "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2", "StatelessRandomUniformV2", "StatelessTruncatedNormal", "StatelessTruncatedNormalV2",
    "TruncatedNormal",
}  # fmt: skip
_REDUCTIONS = {"Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm"}
_LINEAR = {"Add", "AddV2", "AddN", "Sub", "Neg", "Pack", "ConcatV2", "Mul", "RealDiv", "Div", "DivNoNan", "Sum", "Mean"}
RATIOS = {"RealDiv", "Div", "DivNoNan"}


def found_in(value: Any) -> Found:
    """Return what a value has of rows."""
    if not isinstance(value, tf.Tensor):
        return FREE
    known: Found | None = getattr(value, MARK, None)
    if known is not None:
        return known
    if not tf.is_symbolic_tensor(value):
        return Found(Of.OTHER, why="computed without a graph")
    pending = [value]
    while pending:  # not recursive: a graph may be deep
        tensor = pending[-1]
        if hasattr(tensor, MARK):
            pending.pop()
            continue
        missing = [each for each in tensor.op.inputs if not hasattr(each, MARK)]
        if missing:
            pending += missing
        else:
            setattr(mark(pending.pop(), _derived(tensor)), TRAINED, _is_trained(tensor))
    return getattr(value, MARK)  # type: ignore[no-any-return]


def is_trained(tensor: Any) -> bool:
    """Return whether a tensor, of which it is known what it has of rows, depends on variables, as predictions do."""
    return bool(getattr(tensor, TRAINED, tf.is_symbolic_tensor(tensor)))


def _is_trained(tensor: Any) -> bool:
    kind = tensor.op.type
    if kind == "StopGradient" or not tensor.dtype.is_floating:
        return False
    if kind == "Placeholder":
        outer = _captured(tensor)
        return outer is not tensor and is_trained(outer)
    return kind in ("ReadVariableOp", "ResourceGather") or any(map(is_trained, tensor.op.inputs))


def is_total(tensor: Any) -> bool:
    """Return whether the value of all rows follows from the workers' own: see `total`."""
    if getattr(tensor, MARK, FREE).of in (Of.SUM, Of.MEAN):
        return True
    if not tf.is_symbolic_tensor(tensor):
        return False
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    if kind in ("Identity", "Cast"):
        return is_total(inputs[0])
    if kind not in ("Add", "AddV2", "Maximum", "Mul"):
        return False
    free = [getattr(each, MARK).of is Of.FREE for each in inputs]
    return sum(free) == 1 and is_total(inputs[free.index(False)])


def _derived(tensor: Any) -> Found:
    """Return what a tensor has of rows by its operation, and by what is marked of its inputs."""
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    found: list[Found] = [getattr(each, MARK) for each in inputs]
    if kind == "Placeholder":
        return _of_argument(tensor)
    unknown = next((each for each in found if each.of in (Of.OTHER, Of.WHOLE)), None)
    if unknown is not None:
        return unknown
    if all(each.of is Of.FREE for each in found):
        return _read(tensor) if kind == "ReadVariableOp" else FREE
    if kind in SAME:
        return found[tensor.value_index] if kind == "IdentityN" else found[0]
    if kind in ("PartitionedCall", "StatefulPartitionedCall"):
        return _called(tensor, found)
    return _RULES.get(kind, _unknown)(tensor, inputs, found)


def _of_argument(tensor: Any) -> Found:
    """Return what an argument of a graph has, or what the graph has captured: a batch has an axis of any size."""
    outer = _captured(tensor)
    if outer is not tensor:
        return found_in(outer) if tf.is_symbolic_tensor(outer) else FREE
    return Found(Of.ROWS) if has_open_axis(tensor) and tensor.dtype not in (tf.resource, tf.variant) else FREE


def _read(tensor: Any) -> Found:
    """Return what the value of a variable has: rows of this worker, if the step sets the variable from these."""
    mark(tensor, FREE)  # on the way, as what it is set to may be made of it
    handle = tensor.op.inputs[0]
    if hasattr(_captured(handle), OWN_STATE) or not _is_set_from_rows(handle):
        return FREE
    return Found(Of.OTHER, why="a variable that the step sets from rows")


def is_set_from_rows(variable: Any) -> bool:
    """Return whether a step, in the present graph, sets a variable from the rows of this worker; eagerly it may."""
    graph = tf.compat.v1.get_default_graph()
    if not tf.inside_function():
        return True
    arguments = [inner for outer, inner in getattr(graph, "captures", ()) if outer is variable.handle]
    called = [user for each in arguments for user in each.consumers() if user.type in _CALLS]
    return bool(called) or any(map(_is_set_from_rows, arguments))


def _is_set_from_rows(handle: Any) -> bool:
    users = [user for user in handle.consumers() if user.type.startswith("Assign")]
    return any(found_in(user.inputs[1]).of is not Of.FREE for user in users)


def _captured(tensor: Any) -> Any:
    """Return what an argument of a graph stands for, if the graph has captured it."""
    while tf.is_symbolic_tensor(tensor):
        outer = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        if outer is None:
            break
        tensor = outer
    return tensor


def _called(tensor: Any, found: Sequence[Found]) -> Found:
    """Return what a function of TensorFlow returns, by the operations in its own graph."""
    function = tensor.graph._get_function(tensor.op.get_attr("f").name)
    graph = getattr(function, "graph", None)
    if graph is None:
        return not_known(tensor)
    for argument, of_argument in zip(graph.inputs, found, strict=True):
        if not hasattr(argument, MARK):
            mark(argument, of_argument)
    result = found_in(graph.outputs[tensor.value_index])
    return result if result.divisor is None and result.of is not Of.SEVERAL else not_known(tensor)


def _elementwise(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911
    kind, of = tensor.op.type, [each.of for each in found]
    if Of.SHAPE in of:
        return next(each for each in found if each.of is Of.SHAPE)
    with_rows = [(each, of_each) for each, of_each in zip(inputs, found, strict=True)
                 if of_each.of in (Of.ROWS, Of.PICKED)]  # fmt: skip
    if not with_rows:
        return _combined(tensor, inputs, found)
    if tensor.shape.rank is None or any(each.shape.rank is None for each, _ in with_rows):
        return not_known(tensor)
    from_right = {each.shape.rank - of_each.axis for each, of_each in with_rows}
    kinds = {of_each.of for _, of_each in with_rows}
    divisors = [of_each.divisor for _, of_each in with_rows if of_each.divisor is not None]
    others = [of_each for of_each in found if of_each.of not in (Of.ROWS, Of.PICKED, Of.FREE)]
    if others and not (divisors or len(others) > 1) and len(with_rows) == 1:
        divisors = _row_divisor(kind, inputs, found)
        others = [] if divisors else others
    linear = kind in ("Mul", "Neg") or (kind in RATIOS and found[1].of is Of.FREE)
    if divisors and not linear and not others and not _row_divisor(kind, inputs, found):
        return not_known(tensor)
    if len(from_right) > 1 or any(
        each.of in REDUCED and not each.is_count for each in others
    ):  # pairs of rows, or rows beside their mean
        return of_whole(tensor)
    if len(kinds) > 1 or others or len(divisors) > 1:
        return not_known(tensor)
    return Found(kinds.pop(), tensor.shape.rank - from_right.pop(), divisor=divisors[0] if divisors else None)


def _row_divisor(kind: str, inputs: Sequence[Any], found: Sequence[Found]) -> list[Any]:
    """Return the divisor of rows that an operation divides by a sum or mean of rows."""
    if kind in RATIOS and found[0].of in (Of.ROWS, Of.PICKED) and found[1].of is not Of.FREE and is_total(inputs[1]):
        return [inputs[1]]
    inverse = [each.divisor for each in found if each.of is Of.INVERSE]
    return inverse if kind == "Mul" and len(inverse) == 1 else []


def _combined(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911 - one for each kind
    """Return what an operation of sums and means over rows gives."""
    kind, of = tensor.op.type, {each.of for each in found}
    if tensor.dtype.is_integer and all(each.is_count or each.of is Of.FREE for each in found):
        return next(each for each in found if each.is_count)  # of sizes, as libraries compute them
    if kind in RATIOS:
        return _ratio(tensor, inputs, found)
    if kind in ("Reciprocal", "Inv"):
        return Found(Of.INVERSE, divisor=inputs[0]) if is_total(inputs[0]) else of_whole(tensor)
    if kind == "Mul":
        one, other = found if found[0].of is not Of.FREE else (found[1], found[0])
        if other.of is Of.FREE:
            return one
        inverse, rest = (one, other) if one.of is Of.INVERSE else (other, one)
        if inverse.of is Of.INVERSE and rest.of in (Of.SUM, Of.MEAN):
            return quotient(rest, inverse.divisor)
        return of_whole(tensor)
    if kind in ("Add", "AddV2", "Maximum") and is_total(tensor) and (kind == "Maximum" or Of.GUARDED in of):
        return Found(Of.GUARDED)
    if kind not in _LINEAR or not of <= {Of.FREE, *REDUCED}:
        return of_whole(tensor)
    if of == {Of.SUM}:
        return found[0] if len(found) == 1 else SUM
    return MEAN if of <= {Of.MEAN, Of.FREE} else found[0] if len(found) == 1 else Found(Of.SEVERAL)


def _ratio(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    dividend, divisor = found
    if divisor.of is Of.FREE:
        return dividend
    if not is_total(inputs[1]):
        return not_known(tensor)
    if dividend.of is Of.FREE:
        return Found(Of.INVERSE, divisor=inputs[1])
    return quotient(dividend, inputs[1]) if dividend.of in (Of.SUM, Of.MEAN) else not_known(tensor)


def _reduction(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911
    kind, (values, of_axes), first = tensor.op.type, inputs, found[0]
    if first.of is Of.SHAPE:
        return entry(first) if kind == "Prod" else not_known(tensor)
    if first.of not in (Of.ROWS, Of.PICKED):
        return first if kind in ("Sum", "Mean") and first.of in REDUCED else not_known(tensor)
    axes, rank = static_value(of_axes), values.shape.rank
    if axes is None or rank is None:
        return not_known(tensor)
    reduced = sorted({int(axis) % rank for axis in axes.reshape(-1)})
    if first.axis not in reduced:
        kept = "Arg" not in kind and tensor.op.get_attr("keep_dims")
        shift = 0 if kept else sum(axis < first.axis for axis in reduced)
        return replace(first, axis=first.axis - shift)
    if kind not in ("Sum", "Mean"):
        return of_whole(tensor)
    if kind == "Sum" or first.of is Of.ROWS:
        base = SUM if kind == "Sum" else MEAN
        return base if first.divisor is None else quotient(base, first.divisor)
    if first.divisor is not None or tensor.graph is not tf.compat.v1.get_default_graph():
        return not_known(tensor)
    count = mark(tf.cast(tf.size(values) / tf.maximum(tf.size(tensor), 1), tensor.dtype), SUM)
    setattr(count, TRAINED, False)
    return Found(Of.RATIO, divisor=count)


def _l2_loss(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    plain = found[0].of in (Of.ROWS, Of.PICKED) and found[0].divisor is None
    return SUM if plain else not_known(tensor)


def _by_last_axis(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    first, rank = found[0], inputs[0].shape.rank
    kept = first.of in (Of.ROWS, Of.PICKED) and first.divisor is None and rank is not None and first.axis < rank - 1
    return first if kept else not_known(tensor)


def _by_row(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    kinds = {each.of for each in found} - {Of.FREE}
    kept = len(kinds) == 1 and kinds <= {Of.ROWS, Of.PICKED} and found[0].of in kinds
    return found[0] if kept and not any(each.axis or each.divisor is not None for each in found) else not_known(tensor)


def _matmul(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    (one, other), op = found, tensor.op
    if any(each.divisor is not None for each in found):
        return not_known(tensor)
    if op.type == "MatMul":
        if one.of is Of.ROWS and other.of is Of.FREE:
            return Found(Of.ROWS, int(op.get_attr("transpose_a")) ^ one.axis) if one.axis == 0 else not_known(tensor)
        both = one.of is other.of is Of.ROWS and one.axis == other.axis == 0
        if both and op.get_attr("transpose_a") and not op.get_attr("transpose_b"):
            return SUM
        return of_whole(tensor) if one.of is other.of is Of.ROWS else not_known(tensor)
    ranks = [each.shape.rank or 0 for each in inputs]
    kept = all(of.of is Of.FREE or (of.of is Of.ROWS and of.axis == 0 and rank >= _BATCHED)
               for of, rank in zip(found, ranks, strict=True))  # fmt: skip
    return Found(Of.ROWS) if kept and len({rank for rank, of in zip(ranks, found, strict=True)
                                           if of.of is Of.ROWS}) == 1 else not_known(tensor)  # fmt: skip


def _einsum(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    equation = tensor.op.get_attr("equation").decode()
    if "." in equation or any(each.of not in (Of.ROWS, Of.FREE) or each.divisor is not None for each in found):
        return not_known(tensor)
    given, result = equation.split("->")
    labels = given.split(",")
    rows = {label[each.axis] for label, each in zip(labels, found, strict=True) if each.of is Of.ROWS}
    if len(rows) != 1:
        return not_known(tensor)
    row = rows.pop()
    if any(row in label for label, each in zip(labels, found, strict=True) if each.of is Of.FREE):
        return not_known(tensor)
    return Found(Of.ROWS, result.index(row)) if row in result else SUM


def _joined(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911
    """Return what a stack or a concatenation has."""
    op, is_pack = tensor.op, tensor.op.type == "Pack"
    values, of_values = (inputs, found) if is_pack else (inputs[:-1], found[:-1])
    kinds = {each.of for each in of_values}
    if tensor.dtype.is_integer and kinds <= {Of.SUM, Of.SHAPE, Of.FREE}:  # sizes of axes
        sizes = [1 if is_pack else each.shape.num_elements() for each in values]
        with_count = [place for place, each in enumerate(of_values) if each.of is not Of.FREE]
        if len(with_count) != 1 or None in sizes:
            return not_known(tensor)
        place = with_count[0]
        start = sum(size or 0 for size in sizes[:place]) + (0 if is_pack else of_values[place].axis)
        return Found(Of.SHAPE, start, is_count=of_values[place].is_count)
    if kinds <= {Of.FREE, *REDUCED}:
        return _combined(tensor, values, of_values)
    axes = {each.axis for each in of_values}
    if len(kinds) > 1 or len(axes) > 1 or kinds - {Of.ROWS, Of.PICKED}:
        return not_known(tensor)
    if any(each.divisor is not of_values[0].divisor for each in of_values):
        return not_known(tensor)
    if not is_pack:
        return of_values[0]
    place = op.get_attr("axis") % tensor.shape.rank if tensor.shape.rank else 0
    return replace(of_values[0], axis=of_values[0].axis + (place <= of_values[0].axis))


def _unknown(tensor: Any, _: Sequence[Any], _found: Sequence[Found]) -> Found:
    return not_known(tensor)


Rule = Callable[[Any, Sequence[Any], Sequence[Found]], Found]
_RULES: dict[str, Rule] = {
    **row_axes.RULES,
    **dict.fromkeys(_RANDOM, row_axes.by_size),
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BY_LAST_AXIS, _by_last_axis),
    **dict.fromkeys(_BY_ROW, _by_row),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("Pack", "ConcatV2"), _joined),
    "Einsum": _einsum, "L2Loss": _l2_loss,
}  # fmt: skip
