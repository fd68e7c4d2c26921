"""From columns to what a model takes: one tensor, several by name, or several columns as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TensorInfo", "column_shapes", "to_inputs"]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a model; the shape is one row's, None where it may vary."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have the same shape, and it is known."""
        return None not in self.shape


def column_shapes(
    inputs: Sequence[TensorInfo], columns: Sequence[str], arrays: Sequence[str], declared: Mapping[str, Any]
) -> dict[str, tuple[int | None, ...]]:
    """Return the shape that each column is to have: as the user declares it, or as the model's input has it.

    Parameters
    ----------
    inputs : sequence of TensorInfo
        The model's.
    columns : sequence of str
        Those that the model is given, in order.
    arrays : sequence of str
        Those of them whose values are arrays, vectors or bytes.
    declared : mapping
        Shapes by column.

    Examples
    --------
    >>> image = TensorInfo("pixels", (28, 28, 1), "float32")
    >>> column_shapes([image], ["image"], ["image"], {})
    {'image': (28, 28, 1)}
    """
    by_name = {each.name: each for each in inputs}
    shapes = {}
    for place, column in enumerate(columns):
        taken = by_name.get(column) or (inputs[place] if len(inputs) == len(columns) else None)
        if column in arrays and taken is not None and taken.shape and taken.is_fixed and taken.dtype != "string":
            shapes[column] = taken.shape
    return {**shapes, **{name: tuple(shape) for name, shape in declared.items()}}


def to_inputs(features: Any, inputs: Sequence[TensorInfo]) -> Any:
    """Return a batch's features as the model takes them.

    Parameters
    ----------
    features : tensor or mapping
        One column's tensor, or tensors by column.
    inputs : sequence of TensorInfo
        The model's; empty if it has none that are known, as before its first call.
    """
    if not isinstance(features, Mapping):
        return features
    if len(inputs) == 1:
        return _side_by_side(list(features.values())) if len(features) > 1 else next(iter(features.values()))
    names = [each.name for each in inputs]
    if len(names) == len(features) and set(names) != set(features):
        return dict(zip(names, features.values(), strict=True))
    return dict(features)


def _side_by_side(columns: list[Any]) -> Any:
    import tensorflow as tf

    numbers = [tf.cast(each, tf.float32) for each in columns]
    return tf.concat([each[:, None] if each.shape.rank == 1 else each for each in numbers], axis=-1)
