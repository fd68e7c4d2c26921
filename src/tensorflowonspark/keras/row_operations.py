"""What a value has of the rows of a batch, by the operations that compute it.

Operations are followed from what is known to have rows: the batch, what layers return, and what programs make in the
batch's size. Each operation is known to keep rows apart, or to add them up; after any other one nothing is known. What
is computed of sums and means over rows can be computed once more of those of all workers (`all_rows`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras import row_axes
from tensorflowonspark.keras.row_kinds import (
    BY_ROW,
    FREE,
    MARK,
    MEAN,
    OWN_STATE,
    SUM,
    TOTALS,
    Found,
    Of,
    entry,
    has_open_axis,
    mark,
    not_known,
    of_whole,
    static_value,
)

_BATCHED = 3  # axes of tensors whose matrices are multiplied, each with its own
_SAME = {
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
_LINEAR = {
    "Add", "AddN", "AddV2", "ConcatV2", "ExpandDims", "Mean", "Neg", "Pack", "Reshape", "Squeeze", "Sub", "Sum",
    "Transpose",
}  # fmt: skip
_RATIOS = {"RealDiv", "Div", "DivNoNan"}
_SIZES = {"Rank", "Shape", "ShapeN", "Size"}
_TOTAL = Found(Of.TOTAL)


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
            mark(pending.pop(), _derived(tensor))
    return getattr(value, MARK)  # type: ignore[no-any-return]


def can_be_repeated(op: Any) -> bool:
    """Return whether an operation gives the same once more, with other values and the same gradient."""
    attributes = {each.name: each.type for each in op.op_def.attr}
    has_function = any("func" in kind for kind in attributes.values())
    if op.op_def.is_stateful or has_function or not hasattr(tf.raw_ops, op.type):
        return False
    try:
        op.get_attr("_gradient_op_type")  # of tf.custom_gradient
    except ValueError:
        return True
    return False


def _derived(tensor: Any) -> Found:
    """Return what a tensor has of rows by its operation, and by what is marked of its inputs."""
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    found: list[Found] = [getattr(each, MARK) for each in inputs]
    if kind == "Placeholder":
        return _of_argument(tensor)
    unknown = next((each for each in found if each.of in (Of.OTHER, Of.WHOLE)), None)
    if unknown is not None:  # an operation that is not known may take its size alone
        return unknown if kind in _SAME or kind in _RULES else not_known(tensor)
    if all(each.of is Of.FREE for each in found):
        return _read(tensor) if kind == "ReadVariableOp" else FREE
    if kind in ("PartitionedCall", "StatefulPartitionedCall"):
        return _called(tensor, found)
    if kind in _SAME:
        result = _converted(tensor, found[tensor.value_index] if kind == "IdentityN" else found[0])
    elif all(each.of in {Of.FREE, *TOTALS} for each in found) and not _are_sizes(tensor, found):
        result = _combined(tensor, inputs, found)
    else:
        result = _RULES.get(kind, _unknown)(tensor, inputs, found)
    if kind in _SIZES or not any(each.uses_totals or each.of in TOTALS for each in found):
        return result
    if result.of in BY_ROW:
        result = replace(result, uses_totals=True)
    elif result.of in (Of.SUM, Of.MEAN) and any(each.uses_totals for each in found):
        result = _TOTAL
    needs_repeating = result.uses_totals or result.of is Of.TOTAL
    return not_known(tensor) if needs_repeating and not can_be_repeated(tensor.op) else result


def _converted(tensor: Any, found: Found) -> Found:
    """Return what a value has that is a copy, or is cast: of a sum in whole numbers nothing is a sum."""
    narrows = tensor.op.type == "Cast" and tensor.op.inputs[0].dtype.is_floating and not tensor.dtype.is_floating
    return _TOTAL if narrows and found.of in TOTALS else found


def _are_sizes(tensor: Any, found: Sequence[Found]) -> bool:
    """Return whether a tensor is made of numbers of rows, as sizes of axes are."""
    if tensor.op.type not in ("Pack", "ConcatV2", "ExpandDims", "Reshape", "Squeeze") or not tensor.dtype.is_integer:
        return False
    return all(each.is_count or each.of is Of.FREE for each in found)


def _of_argument(tensor: Any) -> Found:
    """Return what an argument of a graph has, or what the graph has captured: a batch has an axis of any size."""
    outer = _captured(tensor)
    if outer is not tensor:
        found = found_in(outer) if tf.is_symbolic_tensor(outer) else FREE
        return _known_there(tensor, found)
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
    return _known_there(tensor, found_in(graph.outputs[tensor.value_index]))


def _known_there(tensor: Any, found: Found) -> Found:
    """Return what a tensor has of another graph, in which nothing can be computed once more."""
    return not_known(tensor) if found.uses_totals or found.of is Of.TOTAL else found


def _elementwise(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    sizes = next((each for each in found if each.of is Of.SHAPE), None)
    if sizes is not None:
        return sizes
    by_row = [(each, of_each) for each, of_each in zip(inputs, found, strict=True) if of_each.of in BY_ROW]
    if tensor.shape.rank is None or any(each.shape.rank is None for each, _ in by_row):
        return not_known(tensor)
    from_right = {each.shape.rank - of_each.axis for each, of_each in by_row}
    if len(from_right) > 1:
        return of_whole(tensor)  # pairs of rows
    kinds = {of_each.of for _, of_each in by_row}
    return Found(kinds.pop(), tensor.shape.rank - from_right.pop()) if len(kinds) == 1 else not_known(tensor)


def _combined(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911 - one for each kind
    """Return what an operation of sums and means over rows gives."""
    kind = tensor.op.type
    by_value = kind in _ELEMENTWISE or kind in _SAME or kind in ("Pack", "ConcatV2")
    if not by_value and any(each.dtype.is_integer and of.of in TOTALS for each, of in zip(inputs, found, strict=True)):
        return not_known(tensor)  # it may be a size
    if kind == "Mul" and Of.FREE in (found[0].of, found[1].of):
        return found[found[0].of is Of.FREE]
    if kind in _RATIOS and tensor.dtype.is_floating and found[0].of in (Of.SUM, Of.MEAN):
        if found[1].of is Of.FREE:
            return found[0]
        if found[1].is_count and found[0].of is Of.SUM:
            return FREE if found[0].is_count else MEAN
    if kind in _LINEAR:
        values = [of for each, of in zip(inputs, found, strict=True) if each.dtype == tensor.dtype]
        of = {each.of for each in values}
        if of == {Of.SUM}:
            return values[0] if len(values) == 1 else SUM
        if of <= {Of.MEAN, Of.FREE}:
            return MEAN
    return _TOTAL


def _reduction(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911
    kind, (values, of_axes), first = tensor.op.type, inputs, found[0]
    if first.of is Of.SHAPE:
        return entry(first) if kind == "Prod" else not_known(tensor)
    if first.of not in BY_ROW:
        return not_known(tensor)
    axes, rank = static_value(of_axes), values.shape.rank
    if axes is None or rank is None:
        return not_known(tensor)
    reduced = sorted({int(axis) % rank for axis in axes.reshape(-1)})
    if first.axis not in reduced:
        kept = "Arg" not in kind and tensor.op.get_attr("keep_dims")
        shift = 0 if kept else sum(axis < first.axis for axis in reduced)
        return replace(first, axis=first.axis - shift)
    if kind in ("All", "Any"):
        return _TOTAL
    if kind not in ("Sum", "Mean"):
        return of_whole(tensor)
    if kind == "Sum":
        return SUM
    return MEAN if first.of is Of.ROWS else _TOTAL  # of rows that were selected, of which each worker has a number


def _l2_loss(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    return SUM if found[0].of in BY_ROW else not_known(tensor)


def _by_last_axis(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    first, rank = found[0], inputs[0].shape.rank
    kept = first.of in BY_ROW and rank is not None and first.axis < rank - 1
    return first if kept else not_known(tensor)


def _by_row(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    kinds = {each.of for each in found} - {Of.FREE}
    kept = len(kinds) == 1 and kinds <= BY_ROW and found[0].of in kinds
    return found[0] if kept and not any(each.axis for each in found) else not_known(tensor)


def _matmul(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    (one, other), op = found, tensor.op
    if op.type == "MatMul":
        inner = [1 - op.get_attr("transpose_a"), int(op.get_attr("transpose_b"))]  # the axes that are added up
        over = [each.axis == axis for each, axis in zip(found, inner, strict=True)]
        if one.of is other.of is Of.ROWS:
            return SUM if all(over) else of_whole(tensor)
        by_row = one.of is not Of.ROWS
        plain = found[by_row].of is Of.ROWS and found[not by_row].of in {Of.FREE, *TOTALS} and not over[by_row]
        return Found(Of.ROWS, int(by_row)) if plain else not_known(tensor)
    ranks = [each.shape.rank or 0 for each in inputs]
    kept = all(of.of is Of.FREE or (of.of is Of.ROWS and of.axis == 0 and rank >= _BATCHED)
               for of, rank in zip(found, ranks, strict=True))  # fmt: skip
    return Found(Of.ROWS) if kept and len({rank for rank, of in zip(ranks, found, strict=True)
                                           if of.of is Of.ROWS}) == 1 else not_known(tensor)  # fmt: skip


def _einsum(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    equation = tensor.op.get_attr("equation").decode()
    if "." in equation or any(each.of not in (Of.ROWS, Of.FREE) for each in found):
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


def _joined(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
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
    axes = {each.axis for each in of_values}
    if len(kinds) > 1 or len(axes) > 1 or kinds - BY_ROW:
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
