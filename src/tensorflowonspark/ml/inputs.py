"""Conversion of feature columns to a model's inputs: one tensor, several by name, or several columns as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflowonspark.errors import SpecError

__all__ = ["TensorInfo", "check_dtypes", "column_shapes", "to_inputs"]


@dataclass(frozen=True)
class TensorInfo:
    """The name, shape and dtype of a model's tensor; the shape is one row's, with None for a size that varies."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have the same known shape."""
        return None not in self.shape


def column_shapes(
    inputs: Sequence[TensorInfo], columns: Sequence[str], arrays: Sequence[str], declared: Mapping[str, Any]
) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each column: as the user declares it, or as the model's input has it.

    Parameters
    ----------
    inputs : sequence of TensorInfo
        The model's inputs.
    columns : sequence of str
        The feature columns, in order.
    arrays : sequence of str
        Feature columns whose values are arrays, vectors or bytes.
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
    for number, column in enumerate(columns):
        taken = by_name.get(column) or (inputs[number] if len(inputs) == len(columns) else None)
        if column in arrays and taken is not None and taken.shape and taken.is_fixed and taken.dtype != "string":
            shapes[column] = taken.shape
    return {**shapes, **{name: tuple(shape) for name, shape in declared.items()}}


def check_dtypes(inputs: Sequence[TensorInfo], dtypes: Mapping[str, str]) -> None:
    """Refuse columns of strings for inputs of numbers, and columns of numbers for inputs of strings.

    Parameters
    ----------
    inputs : sequence of TensorInfo
        The model's inputs; nothing is checked if none is known.
    dtypes : mapping
        Dtypes of the feature columns, in order; ``string`` for strings and bytes.

    Raises
    ------
    SpecError
        With the names of the column and the input, and the conversion to make.

    Examples
    --------
    >>> check_dtypes([TensorInfo("x", (1,), "float32")], {"city": "string"})
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: column 'city' holds strings or bytes, and the model's input 'x' takes float32: \
index it (StringIndexer), cast it (df.withColumn('city', df['city'].cast('float'))), or decode it in Spark; or begin \
the model with a layer that takes strings (StringLookup, TextVectorization)
    """
    for (column, dtype), taken in zip(dtypes.items(), _input_of_each(inputs, list(dtypes)), strict=True):
        if taken is None or (dtype == "string") == (taken.dtype == "string"):
            continue
        if dtype == "string":
            raise SpecError(
                f"column {column!r} holds strings or bytes, and the model's input {taken.name!r} takes {taken.dtype}: "
                f"index it (StringIndexer), cast it (df.withColumn({column!r}, df[{column!r}].cast('float'))), or "
                "decode it in Spark; or begin the model with a layer that takes strings (StringLookup, "
                "TextVectorization)"
            )
        raise SpecError(
            f"column {column!r} holds {dtype}, and the model's input {taken.name!r} takes strings: cast it "
            f"(df.withColumn({column!r}, df[{column!r}].cast('string')))"
        )


def _input_of_each(inputs: Sequence[TensorInfo], columns: Sequence[str]) -> list[TensorInfo | None]:
    """Return the input that receives each column, as in `to_inputs`."""
    if len(inputs) == 1:
        return [inputs[0]] * len(columns)
    by_name = {each.name: each for each in inputs}
    if len(inputs) == len(columns) and set(by_name) != set(columns):
        return list(inputs)
    return [by_name.get(column) for column in columns]


def to_inputs(features: Any, inputs: Sequence[TensorInfo]) -> Any:
    """Return a batch's features in the structure of the model's inputs.

    Parameters
    ----------
    features : tensor or mapping
        One column's tensor, or tensors by column.
    inputs : sequence of TensorInfo
        The model's inputs; empty if they are unknown, as before its first call.

    Returns
    -------
    tensor or dict
    """
    if not isinstance(features, Mapping):
        return features
    if len(inputs) == 1:
        return (
            _side_by_side(list(features.values()), inputs[0].dtype)
            if len(features) > 1
            else next(iter(features.values()))
        )
    names = [each.name for each in inputs]
    if len(names) == len(features) and set(names) != set(features):
        return dict(zip(names, features.values(), strict=True))
    return dict(features)


def _side_by_side(columns: list[Any], dtype: str) -> Any:
    import tensorflow as tf

    alike = columns if dtype == "string" else [tf.cast(each, tf.float32) for each in columns]
    return tf.concat([each[:, None] if each.shape.rank == 1 else each for each in alike], axis=-1)
