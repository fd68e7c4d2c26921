"""Operations that move, select, repeat or count rows: where they are in the result (see `row_operations`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorflowonspark.keras.row_kinds import BY_ROW, FREE, TOTALS, Found, Of, entry, not_known, static_value


def _transpose(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    order, first = static_value(inputs[1]), found[0]
    if order is None or first.of not in BY_ROW:
        return not_known(tensor)
    return replace(first, axis=order.tolist().index(first.axis))


def _reshape(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    first = found[0]
    if first.of in TOTALS or first.of is Of.SHAPE:
        return first
    if first.of not in BY_ROW or first.axis or tensor.shape.rank is None:
        return not_known(tensor)
    sizes = tensor.shape.as_list()
    axis = next((axis for axis, size in enumerate(sizes) if size != 1), None)
    return replace(first, axis=axis) if axis is not None and sizes[axis] is None else not_known(tensor)


def _expand(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    axis, first = static_value(inputs[1]), found[0]
    if first.of not in BY_ROW:
        return first if first.of in TOTALS else _shape_part(tensor, found)
    if axis is None or tensor.shape.rank is None:
        return not_known(tensor)
    place = int(axis.reshape(-1)[0]) % tensor.shape.rank
    return replace(first, axis=first.axis + (place <= first.axis))


def _squeeze(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    first, rank = found[0], inputs[0].shape.rank
    if first.of not in BY_ROW:
        return first if first.of in TOTALS else _shape_part(tensor, found)
    dims = [int(axis) % rank for axis in tensor.op.get_attr("squeeze_dims")] if rank else []
    if not dims or first.axis in dims:
        return not_known(tensor)
    return replace(first, axis=first.axis - sum(axis < first.axis for axis in dims))


def _shape_part(tensor: Any, found: Sequence[Found]) -> Found:
    return (
        replace(found[0], axis=0)
        if found[0].of is Of.SHAPE
        else found[0]
        if found[0].of is Of.SUM
        else not_known(tensor)
    )


def _unpack(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    first, rank = found[0], inputs[0].shape.rank
    if first.of is Of.SHAPE:
        return entry(first) if tensor.value_index == first.axis else FREE
    if first.of not in BY_ROW or rank is None:
        return not_known(tensor)
    axis = tensor.op.get_attr("axis") % rank
    return not_known(tensor) if axis == first.axis else replace(first, axis=first.axis - (axis < first.axis))


def _strided_slice(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    first, rank = found[0], inputs[0].shape.rank
    begin, end, strides = (static_value(each) for each in inputs[1:])
    if begin is None or strides is None or rank is None or any(each.of is not Of.FREE for each in found[1:]):
        return not_known(tensor)
    masks = {
        name: tensor.op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if first.of is Of.SHAPE:
        return _entries(tensor, first, begin, end, masks)
    axis = _sliced_axis(first.axis, rank, begin, strides, masks) if first.of in BY_ROW else None
    return not_known(tensor) if axis is None else replace(first, axis=axis)


def _entries(tensor: Any, shape: Found, begin: Any, end: Any, masks: dict[str, int]) -> Found:
    """Return what some entries of a shape have."""
    if masks["shrink_axis"] & 1:
        return entry(shape) if begin[0] == shape.axis else FREE
    size = tensor.shape.num_elements()
    start = 0 if masks["begin"] & 1 else int(begin[0])
    if size is None or start < 0 or end is None:
        return not_known(tensor)
    return replace(shape, axis=shape.axis - start) if start <= shape.axis < start + size else FREE


def _sliced_axis(axis: int, rank: int, begin: Any, strides: Any, masks: dict[str, int]) -> int | None:
    """Return where the axis of rows is in a slice that has all of them; None if it has not."""
    given = result = 0
    for place in range(len(begin)):
        bit = 1 << place
        if masks["ellipsis"] & bit:
            later = len(begin) - place - 1 - (masks["new_axis"] >> (place + 1)).bit_count()
            covered = rank - later - given
            if given <= axis < given + covered:
                break
            given, result = given + covered, result + covered
        elif masks["new_axis"] & bit:
            result += 1
        elif given == axis:
            whole = masks["begin"] & masks["end"] & ~masks["shrink_axis"] & bit and strides[place] == 1
            return result if whole else None
        else:
            given, result = given + 1, result + (not masks["shrink_axis"] & bit)
    return result + axis - given


def _slice(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    begin, size, first = static_value(inputs[1]), static_value(inputs[2]), found[0]
    whole = first.of in BY_ROW and begin is not None and size is not None
    return first if whole and begin[first.axis] == 0 and size[first.axis] == -1 else not_known(tensor)


def _split(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    place = 0 if tensor.op.type == "Split" else 2
    values, first = inputs[1 - bool(place)], found[1 - bool(place)]
    axis, rank = static_value(inputs[place]), values.shape.rank
    kept = first.of in BY_ROW and axis is not None and rank and int(axis) % rank != first.axis
    return first if kept else not_known(tensor)


def _gather(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:  # noqa: PLR0911
    (values, indices, *_), (of_values, of_indices, *_) = inputs, found
    axis = static_value(inputs[2]) if tensor.op.type == "GatherV2" else 0
    if axis is None:
        return not_known(tensor)
    axis = int(axis)
    if of_values.of is Of.SHAPE:
        if indices.shape.rank == 0 and (index := static_value(indices)) is not None:
            return entry(of_values) if int(index) == of_values.axis else FREE
        return not_known(tensor)
    batch_dims = tensor.op.get_attr("batch_dims") if tensor.op.type == "GatherV2" else 0
    if batch_dims:
        return Found(Of.ROWS) if of_values.of is of_indices.of is Of.ROWS and not (
            of_values.axis or of_indices.axis) else not_known(tensor)  # fmt: skip
    if of_values.of in {Of.FREE, *TOTALS} and of_indices.of in BY_ROW:
        return replace(of_indices, axis=axis + of_indices.axis) if axis >= 0 else not_known(tensor)
    if of_values.of is Of.ROWS and of_indices.of is Of.PICKED and axis == of_values.axis == 0:
        return Found(Of.PICKED)
    if of_values.of in BY_ROW and of_indices.of is Of.FREE and values.shape.rank:
        axis %= values.shape.rank
        if axis != of_values.axis:
            shift = 0 if axis > of_values.axis else indices.shape.rank - 1
            return replace(of_values, axis=of_values.axis + shift)
    return not_known(tensor)


def _gather_nd(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    values, indices = found
    if values.of is Of.FREE and indices.of in BY_ROW and not indices.axis:
        return indices
    picked = values.of is Of.ROWS and indices.of is Of.PICKED and not values.axis
    return Found(Of.PICKED) if picked else not_known(tensor)


def _resource_gather(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    return found[1] if found[1].of in BY_ROW else not_known(tensor)


def _where(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    kept = found[0].of is Of.ROWS and found[0].axis == 0
    return Found(Of.PICKED) if kept else not_known(tensor)


def _one_hot(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    kept = tensor.op.get_attr("axis") == -1 and found[0].of in BY_ROW
    return found[0] if kept else not_known(tensor)


def _shape(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    place = tensor.value_index if tensor.op.type == "ShapeN" else 0
    first = found[place]
    if first.of is Of.FREE or first.of in TOTALS:
        return FREE
    if first.of not in BY_ROW:
        return not_known(tensor)
    shape = Found(Of.SHAPE, first.axis, is_count=first.of is Of.ROWS)
    return entry(shape) if tensor.op.type == "Size" else shape


def by_size(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    """Return what is made in a given shape, as random numbers: rows, if an axis of it has their number."""
    shapes = [each for each in found if each.of is not Of.FREE]
    if len(shapes) != 1 or shapes[0].of is not Of.SHAPE:
        return not_known(tensor)
    return Found(Of.ROWS, shapes[0].axis)


def _broadcast(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    first = found[0]
    if first.of is Of.FREE:
        return by_size(tensor, inputs, found)
    if first.of not in BY_ROW or tensor.shape.rank is None or inputs[0].shape.rank is None:
        return not_known(tensor)
    return replace(first, axis=first.axis + tensor.shape.rank - inputs[0].shape.rank)


def _kept(tensor: Any, _: Sequence[Any], found: Sequence[Found]) -> Found:
    """Return what repeating values, or filling them up along other axes than that of rows, gives."""
    return found[0] if found[0].of in BY_ROW else not_known(tensor)


def _pad(tensor: Any, inputs: Sequence[Any], found: Sequence[Found]) -> Found:
    amounts, first = static_value(inputs[1]), found[0]
    kept = first.of is Of.ROWS and amounts is not None and not amounts[first.axis].any()
    return first if kept else not_known(tensor)


def _rank(*_: Any) -> Found:
    return FREE


RULES: dict[str, Any] = {
    **dict.fromkeys(("GatherV2", "Gather"), _gather),
    **dict.fromkeys(("Shape", "ShapeN", "Size"), _shape),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    **dict.fromkeys(("Split", "SplitV"), _split),
    "BroadcastTo": _broadcast, "ExpandDims": _expand, "Fill": by_size, "GatherNd": _gather_nd, "OneHot": _one_hot,
    "Rank": _rank, "Reshape": _reshape, "ResourceGather": _resource_gather, "Slice": _slice, "Squeeze": _squeeze,
    "StridedSlice": _strided_slice, "Tile": _kept, "Transpose": _transpose, "Unpack": _unpack, "Where": _where,
}  # fmt: skip
