"""Values of all workers' rows: what a step computes of sums and means over rows, computed once more of those of all.

A loss, or a metric, may be any function of sums and means over the rows of a batch: the root of a mean, a quotient of
two sums, a variance, a correlation. It does not follow from the workers' own values, but from their sums: these are
added up over the workers, and the operations that follow run a second time with the results. Operations may also have
rows again, as those less their mean; then each worker computes its own rows with the mean of all.

Gradients flow through the second run (`all_sum` has one), down to the values that the first run already had.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.row_kinds import BY_ROW, TOTALS, Found, Of
from tensorflowonspark.keras.row_operations import found_in
from tensorflowonspark.keras.tensorflow_collectives import all_sum
from tensorflowonspark.keras.worker_step import WorkerStep

_SIZED = {  # the place of the values among the inputs of operations whose other inputs are sizes and places
    "BroadcastTo": 0, "ExpandDims": 0, "MirrorPad": 0, "Pad": 0, "PadV2": 0, "Reshape": 0, "Slice": 0, "Split": 1,
    "SplitV": 0, "Squeeze": 0, "StridedSlice": 0, "Tile": 0, "Transpose": 0,
}  # fmt: skip


def is_own(found: Found) -> bool:
    """Return whether a value is computed with sums over this worker's rows, so that it is to be computed once more."""
    return found.of is Of.TOTAL or found.uses_totals


def of_all_rows(step: WorkerStep, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return values of which it is known what they have of rows, with all sums and means those of all workers' rows.

    Sums and means are then equal on all workers; values of rows stay those of this worker. In a step that XLA compiles,
    where workers can't communicate, it is a `SpecError`.
    """
    if step.is_compiled:
        raise SpecError(
            f"{type(step.model).__name__}: a layer, or a loss that is neither a mean nor a sum over the rows of a "
            "batch, needs the sums of all workers, which can't be exchanged in what XLA compiles: compile the model "
            "without jit_compile=True"
        )
    needed = _in_order(values)
    leaves = [each for each in needed if found_in(each).of in (Of.SUM, Of.MEAN)]
    known = dict(zip(map(id, leaves), _sums(step, leaves, [found_in(each).of for each in leaves]), strict=True))
    for each in needed:
        if is_own(found_in(each)):
            known[id(each)] = _again(step, each, known)
    return [known.get(id(each), each) for each in values]


def computed_from(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the floats of the first run that `of_all_rows` computes values from."""
    needed = _in_order(values)
    again = {id(each) for each in needed if is_own(found_in(each))}
    used = [each for each in needed if id(each) not in again]
    used += [each for own in needed if id(own) in again for each in own.op.inputs if id(each) not in again]
    floats = {id(each): each for each in used if each.dtype.is_floating or each.dtype.is_complex}
    return list(floats.values())


def _in_order(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums and means that values are computed from, and what is computed of them, each after its inputs."""
    ordered: dict[int, tf.Tensor] = {}
    pending = [(each, False) for each in reversed(values)]
    while pending:  # not recursive: a graph may be deep
        tensor, is_ready = pending.pop()
        found = found_in(tensor)
        if id(tensor) in ordered or not (found.of in TOTALS or found.uses_totals):
            continue
        if is_ready or not is_own(found):
            ordered[id(tensor)] = tensor
        else:
            pending.append((tensor, True))
            pending += [(each, False) for each in reversed(_inputs(tensor.op))]
    return list(ordered.values())


def _inputs(op: Any) -> list[Any]:
    """Return the inputs of an operation that are values, and not sizes."""
    place = _SIZED.get(op.type)
    return list(op.inputs) if place is None else [op.inputs[place]]


def _again(step: WorkerStep, tensor: tf.Tensor, known: dict[int, Any]) -> tf.Tensor:
    """Return what a tensor is with other values in place of its inputs."""
    op, values = tensor.op, {id(each) for each in _inputs(tensor.op)}
    inputs = [known.get(id(each), each) if id(each) in values else each for each in op.inputs]
    if not any(found_in(each).of in (BY_ROW | TOTALS) for each in op.inputs):
        raise _unrepeatable(op)
    picked = [value for value, each in zip(inputs, op.inputs, strict=True) if found_in(each).of is Of.PICKED]
    if found_in(tensor).of in BY_ROW or not any(found_in(each).of in BY_ROW for each in op.inputs):
        return _run(op, inputs)[tensor.value_index]
    if op.type in ("All", "Any"):
        is_any = op.type == "Any"
        (own,) = _run(op, inputs)
        (count,) = _sums(step, [tf.cast(own if is_any else ~own, tf.float32)], [Of.SUM])
        return count > 0.0 if is_any else tf.equal(count, 0.0)
    if op.type != "Mean":  # a sum over rows
        return _sums(step, [_run(op, inputs)[tensor.value_index]], [Of.SUM])[0]
    if not picked:
        return _sums(step, [_run(op, inputs)[0]], [Of.MEAN])[0]
    total = tf.raw_ops.Sum(input=inputs[0], axis=inputs[1], keep_dims=op.get_attr("keep_dims"))
    count = tf.cast(tf.size(picked[0]) / tf.maximum(tf.size(total), 1), total.dtype)
    total, count = _sums(step, [total, count], [Of.SUM, Of.SUM])
    return total / count


def _sums(step: WorkerStep, values: Sequence[tf.Tensor], kinds: Sequence[Of]) -> list[tf.Tensor]:
    """Return sums, and means, over the rows of all workers."""
    if not values:
        return []
    parts = []
    for value, of in zip(values, kinds, strict=True):
        wide = value if value.dtype.is_floating or value.dtype.is_complex else tf.cast(value, tf.float64)
        share = tf.cast(step.share if of is Of.MEAN else step.any, wide.dtype)
        parts.append(tf.where(step.own > 0, wide * share, tf.zeros_like(wide)))
    return [tf.cast(each, value.dtype) for each, value in zip(all_sum(step.strategy, parts), values, strict=True)]


def _run(op: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run an operation once more with other inputs, so that tapes record it; return its outputs."""
    function = getattr(tf.raw_ops, op.type)
    names = [each for each in inspect.signature(function).parameters if each != "name"]
    given: dict[str, Any] = {}
    left = list(inputs)
    for name, argument in zip(names, op.op_def.input_arg, strict=False):
        if not (argument.number_attr or argument.type_list_attr):
            given[name] = left.pop(0)
            continue
        listed = op.get_attr(argument.number_attr or argument.type_list_attr)
        count = listed if isinstance(listed, int) else len(listed)
        given[name], left = left[:count], left[count:]
    attributes = {name: op.get_attr(name) for name in names[len(op.op_def.input_arg) :]}
    outputs: list[Any] = tf.nest.flatten(function(**given, **attributes))
    made = outputs[0].op
    if made.type != op.type or any(one is not other for one, other in zip(made.inputs, inputs, strict=True)):
        raise _unrepeatable(op)
    return outputs


def _unrepeatable(op: Any) -> SpecError:
    return SpecError(
        f"the operation {op.type} ({op.name}) can't be computed once more of the sums of all workers: compute the "
        "loss, or what the layer returns, in another way"
    )
